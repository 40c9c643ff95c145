package scenario

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed-a29ca62a/cortex/config"
	"go.yaml.in/yaml/v3"
)

// Bounds of what is read.
const (
	MaxFile      = 1 << 20  // bytes of a scenario file
	MaxTraceFile = 10 << 20 // bytes of a trace
	MaxSteps     = 1000     // of arrivals; what has more is a trace
	MaxFaults    = 500
	maxDepth     = 20 // of nesting: more than any key is deep
)

// Load reads a file that holds one scenario; see [Parse].
func Load(path string) (*Scenario, error) {
	all, err := LoadAll(path)
	if err != nil {
		return nil, err
	}
	return only(all, path)
}

// LoadAll reads a file with any number of scenarios, divided by lines of ---, as printing several of them makes.
func LoadAll(path string) ([]*Scenario, error) {
	data, err := readFile(path, MaxFile)
	if err != nil {
		return nil, err
	}
	return parseAll(data, path)
}

// Parse reads one scenario and validates it. A trace that it names is read from the directory of file, whose name is otherwise for
// messages only. What is wrong comes as [config.Errors], with line, column and key: a key that is not known or is given twice, a
// value of another type, a key of another kind of fault, a value out of range. The YAML has no aliases, merge keys or tags.
//
// Missing keys are the defaults of [Scenario], and: client.timeout adaptive, client.max_retries 3.
func Parse(data []byte, file string) (*Scenario, error) {
	all, err := parseAll(data, file)
	if err != nil {
		return nil, err
	}
	return only(all, file)
}

func only(all []*Scenario, file string) (*Scenario, error) {
	if len(all) > 1 {
		return nil, config.Errors{{File: file, Line: 1, Column: 1, Message: fmt.Sprintf("%d scenarios: want one", len(all))}}
	}
	return all[0], nil
}

func parseAll(data []byte, file string) ([]*Scenario, error) {
	var all []*Scenario
	d := &decoder{file: file}
	for _, doc := range d.documents(data) {
		d.places = make(map[string]place)
		if s := d.scenario(doc); s != nil {
			all = append(all, s)
		}
	}
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b config.Problem) int {
			return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		const most = 100
		return nil, d.problems[:min(len(d.problems), most)]
	}
	return all, nil
}

// readFile reads a regular file of at most so many bytes. Anything else (a pipe, a device) could have no end.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d MiB", most>>20)}
	}
	return data, err
}

// A place is where a value stands: the position of its key, or its own in a list.
type place struct {
	key          string
	line, column int
}

func (p place) child(name string, at *yaml.Node) place {
	if p.key != "" {
		name = p.key + "." + name
	}
	return place{name, at.Line, at.Column}
}

func (p place) item(i int, at *yaml.Node) place {
	return place{fmt.Sprintf("%s[%d]", p.key, i), at.Line, at.Column}
}

// A decoder collects what is wrong, and where every key that was given stands.
type decoder struct {
	file     string
	problems config.Errors
	places   map[string]place
}

func (d *decoder) problem(at place, format string, args ...any) {
	d.problems = append(d.problems, config.Problem{File: d.file, Line: at.line, Column: at.column, Key: at.key,
		Message: fmt.Sprintf(format, args...)})
}

// at is the place of a key or, under its name, of the nearest block around it that is given.
func (d *decoder) at(key string) place {
	for k := key; k != ""; k = k[:max(strings.LastIndexAny(k, ".["), 0)] {
		if p, ok := d.places[k]; ok {
			return place{key, p.line, p.column}
		}
	}
	return place{key, d.places[""].line, d.places[""].column}
}

// documents returns the roots of what data holds, or nothing with problems reported.
func (d *decoder) documents(data []byte) []*yaml.Node {
	if len(data) > MaxFile {
		d.problem(place{line: 1, column: 1}, "the file is larger than %d MiB", MaxFile>>20)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !d.readable(data) {
		return nil
	}
	var roots []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		doc, err := next(dec)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			d.syntax(data, err)
			return nil
		}
		if root := doc.Content[0]; !isNull(root) {
			if !d.form(root, place{line: root.Line, column: root.Column}, maxDepth) {
				return nil
			}
			roots = append(roots, root)
		}
	}
	if len(roots) == 0 {
		d.problem(place{line: 1, column: 1}, "the file is empty: `cortex sim --scenario S1 --print` shows what belongs into it")
	}
	return roots
}

// next parses the next document. A panic in the parser is a file that cannot be read.
func next(dec *yaml.Decoder) (doc *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: cannot be parsed: %v", r)
		}
	}()
	doc = new(yaml.Node)
	if err := dec.Decode(doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, errors.New("yaml: not a document")
	}
	return doc, nil
}

// readable reports bytes that no YAML may hold: the parser does not say where they are.
func (d *decoder) readable(data []byte) bool {
	for number, line := range bytes.Split(data, []byte("\n")) {
		column := 1
		for i := 0; i < len(line); column++ {
			r, size := utf8.DecodeRune(line[i:])
			at := place{line: number + 1, column: column}
			switch {
			case r == utf8.RuneError && size == 1:
				d.problem(at, "not UTF-8: want a file saved as UTF-8")
				return false
			case r < ' ' && r != '\t' && r != '\r', r == 0x7f, 0x80 <= r && r <= 0x9f && r != 0x85, r == '\ufeff', r == 0xfffe, r == 0xffff:
				d.problem(at, "control character %U: delete it", r)
				return false
			}
			i += size
		}
	}
	return true
}

var (
	errorLine     = regexp.MustCompile(`^(?:line (\d+): )?(.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

const noAliases = "aliases are not supported: write the value out"

// syntax reports an error of the parser. Its lines count from 0 where the grammar is violated, from 1 where a token is; an unknown
// anchor has none.
func (d *decoder) syntax(data []byte, err error) {
	m := errorLine.FindStringSubmatch(strings.TrimPrefix(err.Error(), "yaml: "))
	message := m[2]
	line, _ := strconv.Atoi(m[1])
	if strings.HasPrefix(message, "did not find expected") {
		line++
	}
	lines := strings.Split(string(data), "\n")
	if anchor := unknownAnchor.FindStringSubmatch(message); anchor != nil {
		message = noAliases
		line = 1 + slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "*"+anchor[1]) })
	} else {
		message = "not YAML: " + show(message)
	}
	line = min(max(line, 1), len(lines))
	if l := lines[line-1]; strings.Contains(l[:len(l)-len(strings.TrimLeft(l, " \t"))], "\t") {
		message += ": indent with spaces, not tabs"
	}
	d.problem(place{line: line}, "%s", message)
}

// form reports, in the whole tree, what this format does without: aliases (a few lines of them make a tree of gigabytes), merge
// keys, tags, keys that are not plain text, and keys given twice. It is false where there was any of that.
func (d *decoder) form(n *yaml.Node, at place, depth int) bool {
	switch {
	case depth == 0:
		d.problem(at, "nested too deeply")
		return false
	case n.Kind == yaml.AliasNode:
		d.problem(at, noAliases)
		return false
	case n.Style&yaml.TaggedStyle != 0:
		d.problem(at, "tags are not supported: %s: write the value alone", show(n.Tag))
		return false
	}
	ok := true
	switch n.Kind {
	case yaml.SequenceNode:
		for i, c := range n.Content {
			ok = d.form(c, at.item(i, c), depth-1) && ok
		}
	case yaml.MappingNode:
		first := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			here := at.child(show(key.Value), key)
			switch line, twice := first[key.Value]; {
			case key.Kind != yaml.ScalarNode:
				d.problem(place{at.key, key.Line, key.Column}, "a key must be plain text")
				ok = false
				continue
			case key.Tag == "!!merge":
				d.problem(here, "merge keys (<<) are not supported: write the keys out")
				ok = false
				continue
			case twice:
				d.problem(here, "given twice: first on line %d", line)
				ok = false
			}
			first[key.Value] = key.Line
			ok = d.form(n.Content[i+1], here, depth-1) && ok
		}
	}
	return ok
}
