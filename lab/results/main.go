// Command results measures everything that docs/results.md says, and writes it: the document, its pictures and, beside them, the
// numbers as JSON. From the repository:
//
//	go generate ./lab/results                      the whole, in about a quarter of an hour on two processors
//	go run ./lab/results --only suite,losses       some parts again; the rest of the document stays as it was measured
//	go run ./lab/results --only peers              the real libraries, by the bench module; they are not part of the whole
//	go run ./lab/results --render                  the document from the numbers that are there, nothing measured
//	go run ./lab/results --quick                   all parts, small, into a temporary directory: does the machine work?
//	go run ./lab/results --check                   is the document what the numbers say, and the code still what was measured?
//
// The same code gives the same bytes, but for the peers, whose own randomness cannot be seeded.
package main

//go:generate go run .

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	fl := flag.NewFlagSet("results", flag.ContinueOnError)
	fl.SetOutput(errs)
	only := fl.String("only", "", "measure these `PARTS`, with commas between: "+strings.Join(partNames(), ", "))
	render := fl.Bool("render", false, "measure nothing")
	quick := fl.Bool("quick", false, "small runs of everything, into a temporary directory")
	check := fl.Bool("check", false, "compare with what is there instead of writing it; measures a part of it again")
	docs := fl.String("docs", "", "`DIRECTORY` of results.md and results/ (default: docs of this repository)")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return fmt.Errorf("%q: want flags only", fl.Arg(0))
	}
	root, err := repository()
	if err != nil {
		return err
	}
	s := &study{ctx: ctx, root: root, docs: *docs, scale: full, log: errs}
	if *quick {
		s.scale = small
		if s.docs == "" {
			if s.docs, err = os.MkdirTemp("", "cortex-results-"); err != nil {
				return err
			}
		}
	}
	if s.docs == "" {
		s.docs = filepath.Join(root, "docs")
	}
	if err := os.MkdirAll(s.file(""), 0o755); err != nil {
		return err
	}
	if *check {
		return s.check()
	}
	chosen, err := choose(*only, *render)
	if err != nil {
		return err
	}
	for _, p := range chosen {
		began := time.Now()
		if err := s.measure(p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(errs, "%-10s %v\n", p.name, time.Since(began).Round(time.Second))
	}
	text, err := s.document()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.docs, "results.md"), text, 0o644); err != nil {
		return err
	}
	if err := s.sizes(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, filepath.Join(s.docs, "results.md"))
	return err
}

// repository is the directory of this module's go.mod, from here upwards.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module github.com/seed-a29ca62a/cortex\n") {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("run it inside the repository")
		}
		dir = up
	}
}

func partNames() []string {
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

func choose(list string, none bool) ([]part, error) {
	if none {
		return nil, nil
	}
	var chosen []part
	if list == "" {
		for _, p := range parts() {
			if !p.apart {
				chosen = append(chosen, p)
			}
		}
		return chosen, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(parts(), func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("--only %s: want some of %s", name, strings.Join(partNames(), ", "))
		}
		chosen = append(chosen, parts()[i])
	}
	return chosen, nil
}
