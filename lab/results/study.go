package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/parallel"
	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// A scale says how much is run.
type scale struct {
	seeds         int // of a scenario; those with their own number keep the smaller
	sweep         int // draws
	ablation      int // draws with every ingredient switched off
	fleetSeeds    int
	fleets        []int // sizes
	mapSeeds      int
	mapEvery      int       // every so many of the map's rows and columns
	cascade       int       // runs after a hang
	utilisations  []float64 // of the cascade's curve; nil = the model's own
	cascadeBudget int       // runs of the product, whose chance is too small to be seen in as many
	peerSeeds     int
}

var (
	full  = scale{seeds: 10, sweep: 200, ablation: 200, fleetSeeds: 3, fleets: []int{1, 4, 16, 64, 256}, mapSeeds: 2, mapEvery: 1, cascade: 300, cascadeBudget: 30_000, peerSeeds: 3}
	small = scale{seeds: 1, sweep: 2, ablation: 1, fleetSeeds: 1, fleets: []int{1, 4}, mapSeeds: 1, mapEvery: 8, cascade: 4, utilisations: []float64{0.2, 0.6}, cascadeBudget: 4, peerSeeds: 1}
)

// firstSeed is that of cortex sim; sweepSeed was never tuned on.
const (
	firstSeed = 1
	sweepSeed = 30303
)

// A study measures parts, keeps what they found, and writes the document.
type study struct {
	ctx   context.Context
	root  string // of the repository
	docs  string // where results.md is
	scale scale
	log   io.Writer
}

// A part is a chapter of the document: measure makes its numbers, which are kept as JSON, and pictures; write makes Markdown of them.
type part struct {
	name    string
	apart   bool // not made with the rest
	measure func(*study) (any, error)
	write   func(*page, *study) error
}

// file of the results.
func (s *study) file(name string) string { return filepath.Join(s.docs, "results", name) }

func (s *study) measure(p part) error {
	found, err := p.measure(s)
	if err != nil {
		return err
	}
	if found == nil { // pictures only, or of another part's numbers
		return nil
	}
	data, err := encode(found)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file(p.name+".json"), data, 0o644)
}

// load reads the numbers of a part.
func load[T any](s *study, name string) (T, error) {
	var v T
	data, err := os.ReadFile(s.file(name + ".json"))
	if err != nil {
		return v, fmt.Errorf("%w: measure it with --only %s", err, name)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("%s: %w", s.file(name+".json"), err)
	}
	return v, nil
}

func (s *study) picture(name string, panels ...plot.Panel) error {
	return plot.WriteFile(s.file(name), panels...)
}

func draw(panels ...plot.Panel) ([]byte, error) {
	var b bytes.Buffer
	err := plot.Write(&b, "svg", panels...)
	return b.Bytes(), err
}

// Bounds of what is committed.
const (
	maxFile = 150_000
	maxAll  = 1_500_000
)

// sizes checks that what was written is not too large to be committed.
func (s *study) sizes() error {
	files, err := filepath.Glob(s.file("*"))
	if err != nil {
		return err
	}
	all := 0
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return err
		}
		if info.Size() > maxFile {
			return fmt.Errorf("%s: %d bytes, want less than %d", f, info.Size(), maxFile)
		}
		all += int(info.Size())
	}
	if all > maxAll {
		return fmt.Errorf("%s: %d bytes, want less than %d", s.file(""), all, maxAll)
	}
	return nil
}

// each calls f for 0 to n−1, on all processors, and reports progress.
func (s *study) each(n int, f func(i int) error) error {
	var progress func(done, total int)
	if terminal(s.log) {
		defer fmt.Fprint(s.log, "\r\033[K")
		progress = func(done, total int) {
			if done%16 == 0 || done == total {
				fmt.Fprintf(s.log, "\r\033[K%d of %d\r", done, total)
			}
		}
	}
	return parallel.Each(s.ctx, n, 0, progress, f)
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// encode is JSON with six significant digits, an element of a list on each line.
func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	depth := 0
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '"':
			end := i + 1
			for data[end] != '"' {
				if data[end] == '\\' {
					end++
				}
				end++
			}
			out.Write(data[i : end+1])
			i = end
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		default:
			if c == '-' || c >= '0' && c <= '9' {
				end := i
				for end < len(data) && strings.IndexByte("+-.eE0123456789", data[end]) >= 0 {
					end++
				}
				f, err := strconv.ParseFloat(string(data[i:end]), 64)
				if err != nil {
					return nil, err
				}
				out.WriteString(rounded(f))
				i = end - 1
				continue
			}
		}
		out.WriteByte(data[i])
		if depth <= 2 && (data[i] == ',' || data[i] == '[' && depth == 2) {
			out.WriteByte('\n')
		}
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func rounded(f float64) string {
	if f == float64(int64(f)) && f < 1e15 && f > -1e15 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', 6, 64)
}

// document is the text of results.md.
func (s *study) document() ([]byte, error) {
	p := &page{}
	if err := introduction(p, s); err != nil {
		return nil, err
	}
	for _, x := range parts() {
		if err := x.write(p, s); err != nil {
			if errors.Is(err, os.ErrNotExist) && (x.apart || s.scale.seeds < full.seeds) {
				p.para("*Not measured: `go run ./lab/results --only %s`.*", x.name)
				continue
			}
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return []byte(p.String()), nil
}
