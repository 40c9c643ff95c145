package report

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// A grid is a table of one scenario: names on the left, numbers on the right.
type grid struct {
	title string // of the scenario
	head  []string
	lines [][]string
}

const legend = `goodput: calls answered within their deadline, of those offered, ± its standard deviation over the seeds; by priority.
effic.: goodput ÷ the oracle's. ampl.: attempts that reached the downstream ÷ calls offered; in fault: the same within it.
TTR: from the fault's end until 95 % succeed again. false %: calls refused though the downstream was healthy.
trans/min: changes of the circuit's state a minute.
`

func writeBlocks(w io.Writer, rows []suite.Row, titles map[string]string, render func(*grid, *strings.Builder)) error {
	var b strings.Builder
	never := false
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Scenario == rows[0].Scenario && rows[n].Instances == rows[0].Instances && rows[n].Share == rows[0].Share {
			n++
		}
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		render(newGrid(rows[:n], titles[rows[0].Scenario]), &b)
		for _, r := range rows[:n] {
			never = never || r.NeverRecovered > 0
		}
		rows = rows[n:]
	}
	if b.Len() > 0 {
		b.WriteString("\n" + legend)
	}
	if never {
		b.WriteString("\n† never recovered in at least one seed\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// newGrid makes a table of rows of one scenario: the oracle's line, then the policies.
func newGrid(rows []suite.Row, title string) *grid {
	first := &rows[0]
	least, most := first.Seeds, first.Seeds
	calls, marked := 0.0, false
	var priorities []map[string]float64
	for _, r := range rows {
		least, most = min(least, r.Seeds), max(most, r.Seeds)
		calls += r.Offered / float64(len(rows))
		marked = marked || r.NeverRecovered > 0
		priorities = append(priorities, r.GoodputByPriority)
	}
	levels := descending(union(priorities))

	g := &grid{title: first.Scenario}
	if title != "" {
		g.title += " — " + title
	}
	g.title += fmt.Sprintf(" (%s calls", thousands(calls))
	switch {
	case least != most:
		g.title += ", seeds as shown"
	case most == 1:
		g.title += ", 1 seed"
	default:
		g.title += fmt.Sprintf(", mean of %d seeds", most)
	}
	if first.Instances > 1 {
		g.title += fmt.Sprintf(", %s guards", thousands(float64(first.Instances)))
	}
	switch first.Share {
	case "", "none":
	case "door":
		g.title += ", one more at the target's door"
	default:
		g.title += fmt.Sprintf(", counts shared after %s", first.Share)
	}
	g.title += ")"

	g.head = append(g.head, "policy")
	if least != most {
		g.head = append(g.head, "seeds")
	}
	g.head = append(g.head, "goodput %")
	if most > 1 {
		g.head = append(g.head, "± sd")
	}
	if len(levels) > 1 {
		for _, l := range levels {
			g.head = append(g.head, "prio "+l)
		}
	}
	g.head = append(g.head, "effic.", "ampl.", "in fault", "TTR", "false %", "trans/min")
	width := len(g.head)

	line := func(policy, seeds, goodput, sd string, by map[string]float64, rest ...string) {
		l := []string{policy}
		if least != most {
			l = append(l, seeds)
		}
		l = append(l, goodput)
		if most > 1 {
			l = append(l, sd)
		}
		if len(levels) > 1 {
			for _, p := range levels {
				cell := ""
				if v, ok := by[p]; ok {
					cell = percent(v)
				}
				l = append(l, cell)
			}
		}
		l = append(l, rest...)
		for len(l) < width {
			l = append(l, "")
		}
		g.lines = append(g.lines, l)
	}
	// A mark of one column, so that the numbers stand below each other.
	mark := func(never bool) string {
		switch {
		case never:
			return " †"
		case marked:
			return "  "
		}
		return ""
	}
	line("oracle", "", percent(first.Oracle)+mark(false), "", first.OracleByPriority, "1")
	for _, r := range rows {
		sd, ttr := "", "–"
		if r.Seeds > 1 {
			sd = percent(r.GoodputSD)
		}
		if r.TTR != nil {
			ttr = seconds(*r.TTR)
		}
		if r.NeverRecovered > 0 {
			ttr = fmt.Sprintf("never %d/%d", r.NeverRecovered, r.Seeds)
		}
		line(r.Policy, strconv.Itoa(r.Seeds), percent(r.Goodput)+mark(r.NeverRecovered > 0), sd, r.GoodputByPriority,
			decimals(r.Efficiency, 3), decimals(r.Amplification, 2), decimals(r.AmplificationInFault, 3), ttr,
			decimals(100*r.FalseRejections, 2), decimals(r.TransitionsPerMinute, 1))
	}
	return g
}

// WriteTable writes a table of one's own as "table" or "md": names on the left, numbers on the right.
func WriteTable(w io.Writer, format, title string, head []string, lines [][]string) error {
	g, b := &grid{title: title, head: head, lines: lines}, &strings.Builder{}
	switch format {
	case "table":
		g.text(b)
	case "md":
		g.markdown(b)
	default:
		return fmt.Errorf("format %q: use table or md", format)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (g *grid) text(b *strings.Builder) {
	widths := make([]int, len(g.head))
	all := append([][]string{g.head}, g.lines...)
	for _, l := range all {
		for i, cell := range l {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	b.WriteString(g.title + "\n")
	for _, l := range all {
		var out strings.Builder
		for i, cell := range l {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				out.WriteString("  " + cell + pad)
			} else {
				out.WriteString("  " + pad + cell)
			}
		}
		b.WriteString(strings.TrimRight(out.String(), " ") + "\n")
	}
}

func (g *grid) markdown(b *strings.Builder) {
	line := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			b.WriteString(" " + strings.ReplaceAll(strings.TrimSpace(c), "|", `\|`) + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("### " + g.title + "\n\n")
	line(g.head)
	b.WriteString("|---|" + strings.Repeat("---:|", len(g.head)-1) + "\n")
	for _, l := range g.lines {
		line(l)
	}
}

func percent(share float64) string { return decimals(100*share, 1) }

func decimals(f float64, n int) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return "–"
	}
	return strconv.FormatFloat(f+0, 'f', n, 64)
}

func seconds(s float64) string {
	if s >= 1000 {
		return thousands(s) + " s"
	}
	return decimals(s, 1) + " s"
}

// thousands rounds and groups digits.
func thousands(f float64) string {
	s := decimals(f, 0)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
