package config

import (
	"strings"

	"github.com/seed-a29ca62a/cortex/strictyaml"
	"go.yaml.in/yaml/v3"
)

// maxBytes is the largest file that is read.
const maxBytes = 1 << 20

// A Problem is one thing that is wrong with a configuration. Its File is empty for command line flags.
type Problem = strictyaml.Problem

// Errors is everything that is wrong with a configuration, sorted by line and column. It is never empty where it is returned.
type Errors = strictyaml.Errors

type place = strictyaml.Place

// A decoder fills a File.
type decoder struct{ strictyaml.Decoder }

func newDecoder(file string) *decoder {
	return &decoder{strictyaml.Decoder{File: file, Hide: hide, Escapes: true}}
}

// document returns the root of the one document that data holds, or nil with problems reported.
func (d *decoder) document(data []byte) *yaml.Node {
	whole := place{Line: 1, Column: 1}
	if len(data) > maxBytes {
		d.Problem(whole, "the file is larger than %s", formatSize(maxBytes))
		return nil
	}
	var root *yaml.Node
	for doc := range d.Documents(data) {
		if root != nil {
			d.Problem(place{Line: doc.Line, Column: doc.Column}, "a second document begins here: want one document only")
			break
		}
		root = doc.Content[0]
	}
	switch {
	case root == nil && len(d.Problems) > 0:
		return nil
	case root == nil || strictyaml.IsNull(root):
		d.Problem(whole, "the file is empty: want at least targets")
		return nil
	}
	d.Mark(place{Line: root.Line, Column: root.Column})
	d.Form(root)
	return root
}

// pairs calls do for every key of a mapping, each once, or reports that n is not one. No value at all is an empty mapping: a
// block whose keys are all commented out means the defaults.
func (d *decoder) pairs(n *yaml.Node, at place, do func(key, value *yaml.Node)) {
	if n.Kind == yaml.AliasNode || strictyaml.IsNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.Problem(at, "%s: want a block of keys", d.Describe(n))
		return
	}
	for key, value := range strictyaml.Pairs(n) {
		do(key, value)
	}
}

// scalar returns the text of a value that is to be of a kind, or reports that it is none.
func (d *decoder) scalar(n *yaml.Node, at place, kind string) (string, bool) {
	if strictyaml.IsNull(n) {
		kind += ", or leave the key out for the default"
	}
	return d.Scalar(n, at, kind)
}

// show makes a value of the file fit for a message.
func show(s string) string { return strictyaml.Show(hide(s)) }

// pemMark begins a key or a certificate.
const pemMark = "-----BEGIN"

// hide takes out of a value what may be a secret. Whoever puts a password into a URL finds it in the wrong place soon enough; it
// must not be in the log too.
func hide(s string) string {
	if strings.Contains(s, pemMark) {
		return pemMark + "…" // a key where the path of its file should be
	}
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		head := ""
		if j := strings.Index(s[:i], "//"); j >= 0 && j < len("https:")+1 {
			head = s[:j+2]
		}
		s = head + "…" + s[i:]
	}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s = s[:i] + "?…"
	}
	return s
}
