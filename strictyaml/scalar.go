package strictyaml

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Scalar returns the text of a value, or reports that it is none and what is wanted. Of an alias it says nothing: Form has.
func (d *Decoder) Scalar(n *yaml.Node, at Place, want string) (text string, ok bool) {
	switch {
	case n.Kind == yaml.AliasNode:
		return "", false
	case n.Kind != yaml.ScalarNode, IsNull(n):
		d.Problem(at, "%s: want %s", d.Describe(n), want)
		return "", false
	}
	return n.Value, true
}

// IsNull reports whether nothing stands there, or a null.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// Quoted reports whether a scalar is text whatever it looks like.
func Quoted(n *yaml.Node) bool {
	return n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
}

// Describe says in a message what stands there instead of what was wanted: the value, or what kind of thing it is.
func (d *Decoder) Describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a block of keys"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case IsNull(n):
		return "no value"
	}
	return d.show(n.Value)
}

// AsWritten is the value of a scalar for a message, in quotes if it has them in the file: there "5" is no number.
func (d *Decoder) AsWritten(n *yaml.Node) string {
	if Quoted(n) {
		return strconv.Quote(d.show(n.Value))
	}
	return d.show(n.Value)
}

func (d *Decoder) show(s string) string {
	if d.Hide != nil {
		s = d.Hide(s)
	}
	return Show(s)
}

var (
	number = regexp.MustCompile(`^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$`)
	whole  = regexp.MustCompile(`^-?(0|[1-9]\d*)$`)
)

// IsNumber reports whether text is a decimal number. What Go or YAML take for numbers and no one means is none: NaN, infinity,
// hexadecimal, underscores.
func IsNumber(s string) bool { return number.MatchString(s) }

// IsWhole reports whether text is a whole number in its plainest form: no point, exponent, plus or leading zero, which is octal
// to some.
func IsWhole(s string) bool { return whole.MatchString(s) }

// FormatDuration writes 2m for what Duration.String writes as 2m0s.
func FormatDuration(t time.Duration) string {
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
