package admin

import (
	"math"
	"strconv"
	"strings"
)

// An exposition is metrics in the Prometheus text format, version 0.0.4. Samples of one family follow each other, each family
// once, as the format demands.
type exposition struct {
	b      []byte
	family string
}

// begin starts a family; kind is counter, gauge or histogram.
func (e *exposition) begin(name, kind, help string) {
	e.family = name
	e.b = append(e.b, "# HELP "...)
	e.b = append(e.b, name...)
	e.b = append(e.b, ' ')
	e.b = append(e.b, helpEscaper.Replace(help)...)
	e.b = append(e.b, "\n# TYPE "...)
	e.b = append(e.b, name...)
	e.b = append(e.b, ' ')
	e.b = append(e.b, kind...)
	e.b = append(e.b, '\n')
}

// sample adds a value of the family; labels are names and values in turn.
func (e *exposition) sample(value float64, labels ...string) { e.line("", value, labels) }

// histogram adds a histogram of the family: counts by upper bound in bounds, the last of them beyond every bound.
func (e *exposition) histogram(bounds []float64, counts []uint64, sum float64, labels ...string) {
	labels = append(labels, "le", "")
	total := uint64(0)
	for i, n := range counts {
		total += n
		bound := math.Inf(1)
		if i < len(bounds) {
			bound = bounds[i]
		}
		labels[len(labels)-1] = number(bound)
		e.line("_bucket", float64(total), labels)
	}
	labels = labels[:len(labels)-2]
	e.line("_sum", sum, labels)
	e.line("_count", float64(total), labels)
}

func (e *exposition) line(suffix string, value float64, labels []string) {
	e.b = append(e.b, e.family...)
	e.b = append(e.b, suffix...)
	for i := 0; i+1 < len(labels); i += 2 {
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		e.b = append(e.b, separator)
		e.b = append(e.b, labels[i]...)
		e.b = append(e.b, '=', '"')
		e.b = append(e.b, labelEscaper.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD"))...)
		e.b = append(e.b, '"')
	}
	if len(labels) > 1 {
		e.b = append(e.b, '}')
	}
	e.b = append(e.b, ' ')
	e.b = append(e.b, number(value)...)
	e.b = append(e.b, '\n')
}

func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)
