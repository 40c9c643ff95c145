// Package strictyaml reads YAML for people who write it by hand: every mistake at once, each with its line, column and key and
// with what would be right, and none of what is surprising in YAML (aliases, merge keys, tags, a key given twice).
//
// It knows no keys. A format reads the nodes that [Decoder.Documents] yields with values of its own and reports what is wrong with
// them by [Decoder.Problem].
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A Place is where a value stands in the file: the position of its key, or its own in a list.
type Place struct {
	Key          string // such as "routes[0].path"; empty for the document
	Line, Column int    // from 1; 0 where there is none
}

// Child is the place of a key in the block that stands here.
func (p Place) Child(name string, at *yaml.Node) Place {
	if p.Key != "" {
		name = p.Key + "." + name
	}
	return Place{name, at.Line, at.Column}
}

// Item is the place of an item of the list that stands here.
func (p Place) Item(i int, at *yaml.Node) Place {
	return Place{fmt.Sprintf("%s[%d]", p.Key, i), at.Line, at.Column}
}

// A Decoder collects what is wrong with a file, and where every key that was given stands. Its zero value is ready. It is not for
// concurrent use.
type Decoder struct {
	File    string              // its name in messages
	Hide    func(string) string // takes out of a value what must not stand in a message; nil = there is nothing of the kind
	Escapes bool                // text may hold control characters, as escapes in double quotes

	Problems Errors           // in the order in which they were found
	Places   map[string]Place // of the keys that the file has; see Mark
	Refused  map[string]bool  // keys with a problem
}

// Problem reports what is wrong at a place.
func (d *Decoder) Problem(at Place, format string, args ...any) {
	if d.Refused == nil {
		d.Refused = make(map[string]bool)
	}
	d.Refused[at.Key] = true
	d.Problems = append(d.Problems, Problem{
		File: d.File, Line: at.Line, Column: at.Column, Key: at.Key, Message: fmt.Sprintf(format, args...),
	})
}

// Errors are the problems, sorted. Of very many it has the first hundred and how many more there are.
func (d *Decoder) Errors() Errors { return d.Problems.sorted() }

// Mark notes that the file has the key of a place.
func (d *Decoder) Mark(at Place) {
	if d.Places == nil {
		d.Places = make(map[string]Place)
	}
	d.Places[at.Key] = at
}

// Given reports whether the file has the key.
func (d *Decoder) Given(key string) bool { _, ok := d.Places[key]; return ok }

// At is the place of a key; where it is not given, under its own name that of the nearest block around it that is.
func (d *Decoder) At(key string) Place {
	for k := key; k != ""; k = k[:max(strings.LastIndexAny(k, ".["), 0)] {
		if p, ok := d.Places[k]; ok {
			return Place{key, p.Line, p.Column}
		}
	}
	return Place{key, d.Places[""].Line, d.Places[""].Column}
}

// Documents yields the nodes of the documents that data holds, each with one root as its content. It ends where the data is no
// YAML, which it reports.
func (d *Decoder) Documents(data []byte) iter.Seq[*yaml.Node] {
	return func(yield func(*yaml.Node) bool) {
		data := bytes.TrimPrefix(data, []byte("\ufeff"))
		if !d.readable(data) {
			return
		}
		dec := yaml.NewDecoder(bytes.NewReader(data))
		for {
			doc, err := next(dec)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				d.syntax(data, err)
				return
			}
			if !yield(doc) {
				return
			}
		}
	}
}

// next parses a document. A panic in the parser is a file that cannot be read, not the end of the process that was asked to reload
// it.
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

// readable reports bytes that no YAML may hold; the parser does not say where they are.
func (d *Decoder) readable(data []byte) bool {
	for number, line := range bytes.Split(data, []byte("\n")) {
		column := 1
		for i := 0; i < len(line); column++ {
			r, size := utf8.DecodeRune(line[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				d.Problem(Place{Line: number + 1, Column: column}, "not UTF-8: want a file saved as UTF-8")
				return false
			case r < ' ' && r != '\t' && r != '\r', r == 0x7f, 0x80 <= r && r <= 0x9f && r != 0x85, r == '\ufeff', r == 0xfffe, r == 0xffff:
				instead := ""
				if d.Escapes {
					instead = ", or write it as an escape in double quotes"
				}
				d.Problem(Place{Line: number + 1, Column: column}, "control character %U: delete it%s", r, instead)
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
func (d *Decoder) syntax(data []byte, err error) {
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
		message = "not YAML: " + d.show(message)
	}
	line = min(max(line, 1), len(lines))
	if indent := lines[line-1]; strings.Contains(indent[:len(indent)-len(strings.TrimLeft(indent, " \t"))], "\t") {
		message += ": indent with spaces, not tabs"
	}
	d.Problem(Place{Line: line}, "%s", message)
}

// maxDepth is how deep a file may nest, which is more than any key is deep.
const maxDepth = 20

const (
	noAliases = "aliases are not supported: write the value out"
	noMerge   = "merge keys (<<) are not supported: write the keys out"
)

// Form reports, in the whole tree of a document, what such a file does without: aliases (a few lines of them make a tree of
// gigabytes), merge keys, tags, keys that are not plain text, and keys given twice. It is false where there was any of that.
func (d *Decoder) Form(root *yaml.Node) bool {
	before := len(d.Problems)
	d.form(root, Place{Line: root.Line, Column: root.Column}, maxDepth)
	return len(d.Problems) == before
}

func (d *Decoder) form(n *yaml.Node, at Place, depth int) {
	if depth == 0 {
		d.Problem(at, "nested too deeply")
		return
	}
	if n.Kind == yaml.AliasNode {
		d.Problem(at, noAliases)
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.Problem(at, "tags are not supported: %s: write the value alone", d.show(n.Tag))
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for i, c := range n.Content {
			d.form(c, at.Item(i, c), depth-1)
		}
	case yaml.MappingNode:
		first := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind == yaml.AliasNode {
				d.Problem(Place{at.Key, key.Line, key.Column}, noAliases)
				continue
			}
			if key.Kind != yaml.ScalarNode {
				d.Problem(Place{at.Key, key.Line, key.Column}, "a key must be plain text")
				continue
			}
			here := at.Child(d.show(key.Value), key)
			if isMerge(key) {
				d.Problem(here, noMerge)
				continue
			}
			if line, ok := first[key.Value]; ok {
				d.Problem(here, "given twice: first on line %d", line)
			} else {
				first[key.Value] = key.Line
			}
			d.form(value, here, depth-1)
		}
	}
}

func isMerge(key *yaml.Node) bool { return key.Tag == "!!merge" }

// Pairs yields the keys of a mapping and their values, but for the keys that [Decoder.Form] reports. Of what is no mapping there
// are none.
func Pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			return
		}
		seen := make(map[string]bool, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode || isMerge(key) || seen[key.Value] {
				continue
			}
			seen[key.Value] = true
			if !yield(key, value) {
				return
			}
		}
	}
}
