package strictyaml

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Problem is one thing that is wrong with a file.
type Problem struct {
	File         string // as it was named by who reads it; empty where there is none
	Line, Column int    // from 1; 0 where there is none
	Key          string // such as "targets.payments.timeout.max"; empty for the file as a whole
	Message      string // what is wrong and what would be right
}

// String is the problem in one line: "cortex.yaml:12:7: targets.payments.timeout.max: 5: missing unit: …".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
			if p.Column > 0 {
				fmt.Fprintf(&b, ":%d", p.Column)
			}
		}
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Errors is everything that is wrong with a file, sorted by line and column. It is never empty where it is returned as an error.
type Errors []Problem

// Error is the problems, one a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// maxProblems are as many as anyone reads: what has more is not a file with mistakes in it but something else.
const maxProblems = 100

func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if over := len(e) - maxProblems; over > 0 {
		last := e[maxProblems-1]
		e = append(e[:maxProblems:maxProblems], Problem{
			File: last.File, Line: last.Line, Column: last.Column, Message: fmt.Sprintf("and %d more problems from here on", over),
		})
	}
	return e
}

// Show makes a value of a file fit for a message: one line, not too long, in quotes where its ends would not be seen.
func Show(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	if s == "" || s != strings.TrimSpace(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Suggest is what to say of a name that does not exist: the one that was probably meant, or which there are.
func Suggest(got string, names []string) string {
	if n := Nearest(got, names); n != "" {
		return "did you mean " + n + "?"
	}
	return "want one of " + OneOf(names)
}

// OneOf lists names for a message.
func OneOf(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Nearest is the name that was probably meant, or "". Upper and lower case are the same to it, and so are - and _.
func Nearest(got string, names []string) string {
	const longest = 64 // no name is as long
	if len(got) > longest {
		return ""
	}
	got = strings.ToLower(strings.ReplaceAll(got, "-", "_"))
	best, least := "", 0
	for _, name := range names {
		lower := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
		d := distance(got, lower)
		// A short name is close to anything; a part of a name (retries for max_retries) is far from it by count.
		if d > max(1, min(len(lower), len(got))/3) {
			if len(got) < 4 || len(lower) < 4 || !strings.Contains(lower, got) && !strings.Contains(got, lower) {
				continue
			}
		}
		if best == "" || d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to make b of a.
func distance(a, b string) int {
	var before, last, now []int
	now = make([]int, len(b)+1)
	for j := range now {
		now[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, now = last, now, make([]int, len(b)+1)
		now[0] = i
		for j := 1; j <= len(b); j++ {
			now[j] = min(last[j]+1, now[j-1]+1)
			if a[i-1] == b[j-1] {
				now[j] = min(now[j], last[j-1])
			} else {
				now[j] = min(now[j], last[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
	}
	return now[len(b)]
}
