// Package model holds the laboratory's closed-form models: what the articles behind the product claim, the formula, the
// numbers, and a verdict that is worked out from the inputs.
//
// Every model is a function from typed inputs to a [Report], with a constructor of the inputs that are the claim's own case:
//
//	in := model.DefaultAmplification()
//	in.FailureRate = 0.3
//	report, err := model.Amplification(in)
//
// The error is an *[InputError] that names the input as the command line does. Models are pure: the same inputs give the same
// report, and what is random is drawn from a seed among the inputs. They may be called by any number of goroutines.
package model

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// A Verdict is what the numbers say of a claim.
type Verdict string

// The verdicts.
const (
	Holds       Verdict = "holds"
	HoldsOnlyIf Verdict = "holds only if"
	False       Verdict = "false"
)

// A Report is what a model found.
type Report struct {
	Model   string   `json:"model"`   // name of the subcommand
	Claim   string   `json:"claim"`   // as people state it, with the inputs' numbers
	Formula []string `json:"formula"` // one per line
	Inputs  []Input  `json:"inputs"`
	Tables  []Table  `json:"tables"`
	Verdict Verdict  `json:"verdict"`
	Because string   `json:"because"` // what the verdict rests on; after HoldsOnlyIf it begins with the condition
	Notes   []string `json:"notes,omitempty"`

	// Panels are the picture, empty where none helps.
	Panels []plot.Panel `json:"-"`
}

// An Input is one input as it was used.
type Input struct {
	Name  string `json:"name"` // of the flag, without dashes
	Value any    `json:"value"`
	Unit  string `json:"unit,omitempty"`
}

// A Table is rows of cells below columns. A cell is a string, an int, a bool or a float64 in the unit of its column; one that
// is not finite is null in JSON.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// A Column is a heading and the unit of what stands below it.
type Column struct {
	Name string `json:"name"`
	Unit string `json:"unit,omitempty"`
}

// MarshalJSON writes what is not finite as null.
func (t Table) MarshalJSON() ([]byte, error) {
	rows := make([][]any, len(t.Rows)) // not nil: a table without rows is [] in JSON
	for i, row := range t.Rows {
		rows[i] = make([]any, len(row))
		for j, c := range row {
			rows[i][j] = finite(c)
		}
	}
	type plain Table
	p := plain(t)
	p.Rows = rows
	return json.Marshal(p)
}

// MarshalJSON writes durations in their notation (1.5s) and what is not finite as null.
func (i Input) MarshalJSON() ([]byte, error) {
	type plain Input
	p := plain(i)
	switch v := i.Value.(type) {
	case time.Duration:
		p.Value = v.String()
	case []time.Duration:
		s := make([]string, len(v))
		for k, d := range v {
			s[k] = d.String()
		}
		p.Value = s
	default:
		p.Value = finite(v)
	}
	return json.Marshal(p)
}

func finite(v any) any {
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return nil
	}
	return v
}

// An InputError names an input that cannot be used and says what would be right.
type InputError struct {
	Input string // name of the flag, without dashes
	Value any
	Want  string
}

func (e *InputError) Error() string {
	return fmt.Sprintf("%s is %v: want %s", e.Input, e.Value, e.Want)
}

// within returns an *InputError unless lo ≤ v ≤ hi. NaN is never within.
func within(name string, v, lo, hi float64) error {
	if v >= lo && v <= hi {
		return nil
	}
	return &InputError{name, v, fmt.Sprintf("a number from %s to %s", short(lo), short(hi))}
}

func intWithin(name string, v, lo, hi int) error {
	if v >= lo && v <= hi {
		return nil
	}
	return &InputError{name, v, fmt.Sprintf("a whole number from %d to %d", lo, hi)}
}

func durationWithin(name string, v, lo, hi time.Duration) error {
	if v >= lo && v <= hi {
		return nil
	}
	return &InputError{name, v, fmt.Sprintf("a duration from %v to %v", lo, hi)}
}

func countWithin(name string, n, lo, hi int) error {
	if n >= lo && n <= hi {
		return nil
	}
	return &InputError{name, fmt.Sprintf("a list of %d", n), fmt.Sprintf("%d to %d values", lo, hi)}
}

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// short writes a number with four significant digits and no more zeros than it needs.
func short(v float64) string {
	m := math.Abs(v)
	if v != 0 && m < 1e-3 || m >= 1e7 {
		s := strconv.FormatFloat(v, 'g', 4, 64)
		if mantissa, exponent, ok := strings.Cut(s, "e"); ok { // 1e-06 is written 1e-6
			sign := strings.TrimPrefix(exponent[:1], "+")
			return mantissa + "e" + sign + strings.TrimLeft(exponent[1:], "0")
		}
		return s
	}
	prec := 4
	if m >= 1 {
		prec = max(0, 3-int(math.Log10(m)))
	} else if v != 0 {
		prec = 3 - int(math.Floor(math.Log10(m)))
	}
	s := strconv.FormatFloat(v, 'f', prec, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// percent writes a share as a percentage.
func percent(v float64) string { return short(100*v) + " %" }

// seconds writes a time in seconds in the unit that people would use.
func seconds(s float64) string {
	switch {
	case s != 0 && s < 1:
		return short(1000*s) + " ms"
	case s >= 120:
		return short(s/60) + " min"
	}
	return short(s) + " s"
}

// WriteText writes the report for people: 100 columns wide, prose wrapped, tables not.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	paragraph(&b, "claim", r.Claim)
	for i, f := range r.Formula {
		label := "formula"
		if i > 0 {
			label = ""
		}
		paragraph(&b, label, f)
	}
	for i, in := range r.Inputs {
		label := "input"
		if i > 0 {
			label = ""
		}
		s := "--" + in.Name + " " + inputText(in.Value)
		if in.Unit != "" {
			s += " (" + in.Unit + ")"
		}
		paragraph(&b, label, s)
	}
	for _, t := range r.Tables {
		t.writeText(&b)
	}
	b.WriteByte('\n')
	paragraph(&b, "verdict", string(r.Verdict)+verdictGap(r.Verdict)+r.Because)
	for i, n := range r.Notes {
		label := "note"
		if i > 0 {
			label = ""
		}
		paragraph(&b, label, n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func verdictGap(v Verdict) string {
	if v == HoldsOnlyIf {
		return " "
	}
	return ": "
}

const (
	indent   = 9   // width of the labels
	textWide = 100 // of a line
)

// paragraph writes a label and wraps the text beside it.
func paragraph(b *strings.Builder, label, text string) {
	b.WriteString(pad(label, indent))
	col := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case col+1+n > textWide:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			col = indent
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(word)
		col += n
	}
	b.WriteByte('\n')
}

func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s)))
}

func inputText(v any) string {
	switch v := v.(type) {
	case []float64:
		s := make([]string, len(v))
		for i, x := range v {
			s[i] = short(x)
		}
		return strings.Join(s, ",")
	case []int:
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(v), "[]"), " ", ",")
	case []time.Duration:
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(v), "[]"), " ", ",")
	}
	return cellText(v)
}

func cellText(v any) string {
	switch v := v.(type) {
	case float64:
		switch {
		case math.IsNaN(v):
			return "–"
		case math.IsInf(v, 0):
			return strings.Replace(fmt.Sprint(v), "Inf", "∞", 1)
		}
		return short(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	}
	return fmt.Sprint(v)
}

// writeText writes the table with numbers to the right and words to the left.
func (t Table) writeText(b *strings.Builder) {
	b.WriteByte('\n')
	if t.Title != "" {
		b.WriteString(t.Title + "\n")
	}
	width := make([]int, len(t.Columns))
	left := make([]bool, len(t.Columns))
	heads := make([]string, len(t.Columns))
	for j, c := range t.Columns {
		heads[j] = c.Name
		if c.Unit != "" {
			heads[j] += ", " + c.Unit
		}
		width[j] = utf8.RuneCountInString(heads[j])
	}
	for _, row := range t.Rows {
		for j, c := range row {
			width[j] = max(width[j], utf8.RuneCountInString(cellText(c)))
			if _, word := c.(string); word {
				left[j] = true
			}
		}
	}
	line := func(cell func(j int) string) {
		var l strings.Builder
		for j := range t.Columns {
			s := cell(j)
			l.WriteString("  ")
			if !left[j] {
				l.WriteString(strings.Repeat(" ", width[j]-utf8.RuneCountInString(s)))
			}
			l.WriteString(s)
			if left[j] {
				l.WriteString(strings.Repeat(" ", width[j]-utf8.RuneCountInString(s)))
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(func(j int) string { return heads[j] })
	for _, row := range t.Rows {
		line(func(j int) string { return cellText(row[j]) })
	}
}
