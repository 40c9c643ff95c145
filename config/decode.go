package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxBytes is the largest file that is read.
const maxBytes = 1 << 20

// A place is where a value stands in the file: the position of its key, or its own in a list.
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
	problems []Problem
	places   map[string]place
	refused  map[string]bool // keys with a problem
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, places: make(map[string]place), refused: make(map[string]bool)}
}

func (d *decoder) problem(at place, format string, args ...any) {
	d.refused[at.key] = true
	d.problems = append(d.problems, Problem{
		File: d.file, Line: at.line, Column: at.column, Key: at.key, Message: fmt.Sprintf(format, args...),
	})
}

// given reports whether the file has the key.
func (d *decoder) given(key string) bool { _, ok := d.places[key]; return ok }

// at is the place of a key, under its own name where it is not given, at the nearest block around it that is.
func (d *decoder) at(key string) place {
	for k := key; k != ""; {
		if p, ok := d.places[k]; ok {
			return place{key, p.line, p.column}
		}
		i := strings.LastIndexAny(k, ".[")
		if i < 0 {
			break
		}
		k = k[:i]
	}
	return place{key, d.places[""].line, d.places[""].column}
}

// document returns the root of the one document that data holds, or nil with problems reported.
func (d *decoder) document(data []byte) *yaml.Node {
	whole := place{line: 1, column: 1}
	if len(data) > maxBytes {
		d.problem(whole, "the file is larger than %s", formatSize(maxBytes))
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !d.readable(data) {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := decodeNode(dec, &doc); errors.Is(err, io.EOF) {
		d.problem(whole, "the file is empty: want at least targets")
		return nil
	} else if err != nil {
		d.syntax(data, err)
		return nil
	}
	var second yaml.Node
	if err := decodeNode(dec, &second); err == nil {
		d.problem(place{line: second.Line, column: second.Column}, "a second document begins here: want one document only")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(data, err)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		d.problem(whole, "the file is empty: want at least targets")
		return nil
	}
	d.places[""] = place{line: root.Line, column: root.Column}
	d.form(root, d.at(""), maxDepth)
	return root
}

// decodeNode parses the next document. A panic in the parser is a file that cannot be read, not the end of the process that
// was asked to reload it.
func decodeNode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: cannot be parsed: %v", r)
		}
	}()
	if err := dec.Decode(n); err != nil {
		return err
	}
	if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
		return errors.New("yaml: not a document")
	}
	return nil
}

// readable reports bytes that no YAML may hold; the parser does not say where they are.
func (d *decoder) readable(data []byte) bool {
	for number, line := range bytes.Split(data, []byte("\n")) {
		column := 1
		for i := 0; i < len(line); column++ {
			r, size := utf8.DecodeRune(line[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				d.problem(place{line: number + 1, column: column}, "not UTF-8: want a file saved as UTF-8")
				return false
			case r < ' ' && r != '\t' && r != '\r', r == 0x7f, 0x80 <= r && r <= 0x9f && r != 0x85, r == '\ufeff', r == 0xfffe, r == 0xffff:
				d.problem(place{line: number + 1, column: column}, "control character %U: delete it, or write it as an escape in double quotes", r)
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

// syntax reports an error of the parser. Its lines are those of its own 0-based count where the grammar is violated, 1-based
// where a token is; the first line and an unknown anchor have none.
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
		for i, l := range lines {
			if strings.Contains(l, "*"+anchor[1]) {
				line = i + 1
				break
			}
		}
	} else {
		message = "not YAML: " + show(message)
	}
	line = min(max(line, 1), len(lines))
	if indent := lines[line-1]; strings.Contains(indent[:len(indent)-len(strings.TrimLeft(indent, " \t"))], "\t") {
		message += ": indent with spaces, not tabs"
	}
	d.problem(place{line: line}, "%s", message)
}

// maxDepth is how deep a file may nest, which is more than any key is deep.
const maxDepth = 20

const (
	noAliases = "aliases are not supported: write the value out"
	noMerge   = "merge keys (<<) are not supported: write the keys out"
)

// form reports, in the whole tree, what this format does without: aliases (a few lines of them make a tree of gigabytes), merge
// keys, tags, keys that are not plain text, and keys given twice.
func (d *decoder) form(n *yaml.Node, at place, depth int) {
	if depth == 0 {
		d.problem(at, "nested too deeply")
		return
	}
	if n.Kind == yaml.AliasNode {
		d.problem(at, noAliases)
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.problem(at, "tags are not supported: %s: write the value alone", show(n.Tag))
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for i, c := range n.Content {
			d.form(c, at.item(i, c), depth-1)
		}
	case yaml.MappingNode:
		first := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind == yaml.AliasNode {
				d.problem(place{at.key, key.Line, key.Column}, noAliases)
				continue
			}
			if key.Kind != yaml.ScalarNode {
				d.problem(place{at.key, key.Line, key.Column}, "a key must be plain text")
				continue
			}
			here := at.child(show(key.Value), key)
			if isMerge(key) {
				d.problem(here, noMerge)
				continue
			}
			if line, ok := first[key.Value]; ok {
				d.problem(here, "given twice: first on line %d", line)
			} else {
				first[key.Value] = key.Line
			}
			d.form(value, here, depth-1)
		}
	}
}

func isMerge(key *yaml.Node) bool { return key.Tag == "!!merge" }

// pairs calls do for every key of a mapping, each once, or reports that n is not one. No value at all is an empty mapping: a
// block whose keys are all commented out means the defaults.
func (d *decoder) pairs(n *yaml.Node, at place, do func(key, value *yaml.Node)) {
	switch {
	case n.Kind == yaml.AliasNode, isNull(n):
		return
	case n.Kind != yaml.MappingNode:
		d.problem(at, "%s: want a block of keys", describe(n))
		return
	}
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || isMerge(key) || seen[key.Value] { // form has reported it
			continue
		}
		seen[key.Value] = true
		do(key, value)
	}
}

// scalar returns the text of a value that is to be of a kind, or reports that it is none.
func (d *decoder) scalar(n *yaml.Node, at place, kind string) (string, bool) {
	switch {
	case n.Kind == yaml.AliasNode:
		return "", false // form has reported it
	case isNull(n):
		d.problem(at, "no value: want %s, or leave the key out for the default", kind)
		return "", false
	case n.Kind != yaml.ScalarNode:
		d.problem(at, "%s: want %s", describe(n), kind)
		return "", false
	}
	return n.Value, true
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// quoted reports whether a scalar is text whatever it looks like.
func quoted(n *yaml.Node) bool {
	return n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a block of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	if isNull(n) {
		return "no value"
	}
	return show(n.Value)
}
