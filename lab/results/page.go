package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A page is Markdown under way.
type page struct{ strings.Builder }

func (p *page) head(level int, title string) {
	if p.Len() > 0 {
		p.WriteByte('\n')
	}
	fmt.Fprintf(p, "%s %s\n", strings.Repeat("#", level), title)
}

func (p *page) para(format string, args ...any) { fmt.Fprintf(p, "\n"+format+"\n", args...) }

// command is how a number is made again.
func (p *page) command(lines ...string) {
	p.WriteString("\n```\n" + strings.Join(lines, "\n") + "\n```\n")
}

func (p *page) picture(file, alt string) { fmt.Fprintf(p, "\n![%s](results/%s)\n", alt, file) }

// table has words on the left and numbers, in the other columns, on the right.
func (p *page) table(head []string, rows [][]string) {
	p.WriteString("\n| " + strings.Join(head, " | ") + " |\n|---" + strings.Repeat("|--:", len(head)-1) + "|\n")
	for _, r := range rows {
		p.WriteString("| " + strings.Join(r, " | ") + " |\n")
	}
}

// list is a table of words.
func (p *page) list(head []string, rows [][]string) {
	p.WriteString("\n| " + strings.Join(head, " | ") + " |\n" + strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		p.WriteString("| " + strings.Join(r, " | ") + " |\n")
	}
}

// percent of a share, without its sign.
func percent(v float64, decimals int) string {
	if math.IsNaN(v) {
		return "–"
	}
	return plain(100*v, decimals)
}

// plain is a number that is never −0.
func plain(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Trim(s, "-0.") == "" {
		s = strings.TrimPrefix(s, "-")
	}
	return s
}

func bold(s string, yes bool) string {
	if yes {
		return "**" + s + "**"
	}
	return s
}
