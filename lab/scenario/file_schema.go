package scenario

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/strictyaml"
	"go.yaml.in/yaml/v3"
)

var (
	processes = []string{Poisson.String(), Constant.String()}
	// A name stands in tables, in lists on the command line and in names of files.
	goodName = regexp.MustCompile(`^[\pL\pN][\pL\pN._-]{0,63}$`)
)

func goodTitle(s string) bool {
	return utf8.RuneCountInString(s) <= 200 && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// scenario reads and validates a document; nil with problems reported.
func (d *decoder) scenario(root *yaml.Node) *Scenario {
	before := len(d.Problems)
	s := &Scenario{Client: Client{MaxRetries: 3}}
	var faults []Fault
	d.block(root, place{Line: root.Line, Column: root.Column},
		entry{"name", "a name", d.text(&s.Name, "a name of up to 64 letters, digits, dots, - and _", goodName.MatchString)},
		entry{"title", "", d.text(&s.Title, "one line of at most 200 characters", goodTitle)},
		entry{"duration", "how long calls arrive, such as 120s", d.duration(&s.Duration, noZero)},
		entry{"deadline", "", d.duration(&s.Deadline, noZero)},
		entry{"seeds", "", d.count(&s.Seeds, noZero)},
		entry{"hops", "", d.count(&s.Hops, noZero)},
		entry{"mark", "", d.toggle(&s.Mark)},
		entry{"arrivals", "", func(n *yaml.Node, at place) { d.arrivals(&s.Arrivals, n, at) }},
		entry{"callers", "", func(n *yaml.Node, at place) {
			d.block(n, at,
				entry{"count", "the number of callers", d.count(&s.Callers.Count, noZero)},
				entry{"think", "the mean time between a caller's calls", d.duration(&s.Callers.Think, noZero)})
		}},
		entry{"priorities", "", func(n *yaml.Node, at place) { d.priorities(&s.Priorities, n, at) }},
		entry{"client", "", func(n *yaml.Node, at place) {
			d.block(n, at,
				entry{"timeout", "", d.timeout(&s.Client.Timeout)},
				entry{"max_retries", "", d.count(&s.Client.MaxRetries, orZero)},
				entry{"base_delay", "", d.duration(&s.Client.BaseDelay, noZero)})
		}},
		entry{"downstream", "workers and service at least", func(n *yaml.Node, at place) { d.downstream(&s.Downstream, n, at) }},
		entry{"faults", "", func(n *yaml.Node, at place) {
			d.items(n, at, MaxFaults, "a list of {from, to, kind, …}, or leave the key out", func(_ int, n *yaml.Node, at place) {
				var f Fault
				d.fault(&f, n, at)
				faults = append(faults, f)
			})
		}},
	)
	s.Faults = faults
	arrivals, callers := d.Given("arrivals"), d.Given("callers")
	switch {
	case len(d.Problems) > before:
		return nil
	case arrivals && callers:
		d.Problem(d.At("callers"), "arrivals stand above: want one of them")
		return nil
	case !arrivals && !callers:
		d.Problem(d.At("arrivals"), "missing: want steps of {from, rate}, or {trace: FILE}, or callers instead")
		return nil
	}
	// Shares that come to 1 but for their last digits are those of a printed scenario: they stay what they are.
	shares := slices.Clone(s.Priorities)
	if err := s.Validate(); err != nil {
		d.invalid(err)
		return nil
	}
	sum := 0.0
	for _, p := range shares {
		sum += p.Share
	}
	if sum > 1-1e-9 && sum < 1+1e-9 {
		slices.SortFunc(shares, func(a, b Share) int { return int(b.Priority) - int(a.Priority) })
		s.Priorities = shares
	}
	return s
}

// invalid reports what Validate does not accept.
func (d *decoder) invalid(err error) {
	var f *FieldError
	if !errors.As(err, &f) {
		d.Problem(d.At(""), "%v", err)
		return
	}
	value := fmt.Sprint(f.Value)
	switch v := f.Value.(type) {
	case time.Duration:
		value = formatDuration(v)
	case float64:
		value = formatNumber(v)
	}
	d.Problem(d.At(f.Field), "%s: want %s", strictyaml.Show(value), f.Want)
}

func (d *decoder) timeout(p *time.Duration) reader {
	return func(n *yaml.Node, at place) {
		if n.Kind == yaml.ScalarNode && n.Value == "adaptive" {
			*p = 0
			return
		}
		s, ok := d.Scalar(n, at, "a duration such as 345ms, or adaptive")
		if !ok {
			return
		}
		if t, err := time.ParseDuration(s); err != nil && !strictyaml.IsNumber(s) || err == nil && t <= 0 {
			d.Problem(at, "%s: want a duration such as 345ms, or adaptive", strictyaml.Show(s))
			return
		}
		d.duration(p, noZero)(n, at)
	}
}

func (d *decoder) priorities(p *[]Share, n *yaml.Node, at place) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		d.Problem(at, "%s: want priorities and their shares, such as { 9: 0.2, 5: 0.8 }", d.Describe(n))
		return
	}
	for key, value := range strictyaml.Pairs(n) {
		here := at.Child(strictyaml.Show(key.Value), key)
		d.Mark(here)
		level, err := strconv.Atoi(key.Value)
		if err != nil || !strictyaml.IsWhole(key.Value) || level < 0 {
			d.Problem(here, "want a priority, a whole number such as 9, and its share")
			continue
		}
		share := Share{Priority: cortex.Priority(level)}
		if int(share.Priority) != level {
			d.Problem(here, "too large for a priority")
			continue
		}
		d.number(&share.Share, noZero)(value, here)
		*p = append(*p, share)
	}
}

func (d *decoder) arrivals(a *Arrivals, n *yaml.Node, at place) {
	if n.Kind == yaml.MappingNode {
		a.Scale = 1
		d.block(n, at,
			entry{"trace", "the name of a file with a count per second a line", d.text(&a.File, "the name of a file", goodPath)},
			entry{"scale", "", d.number(&a.Scale, noZero)},
			entry{"process", "", choice(d, &a.Process, processes)})
		if a.File != "" {
			d.trace(a, d.At(at.Key+".trace"))
		}
		return
	}
	d.items(n, at, MaxSteps, "a list of {from, rate}, or {trace: FILE}", func(i int, n *yaml.Node, at place) {
		var s Step
		process := a.Process // of the step before, where this one says nothing
		if i == 0 {
			process = Poisson
		}
		d.block(n, at,
			entry{"from", "when it begins, such as 0s", d.duration(&s.From, orZero)},
			entry{"rate", "calls a second", d.number(&s.Rate, orZero)},
			entry{"process", "", choice(d, &process, processes)})
		if i > 0 && process != a.Process {
			d.Problem(d.At(at.Key+".process"), "%v: the steps before are %v: want one process for all", process, a.Process)
			return
		}
		a.Process = process
		a.Steps = append(a.Steps, s)
	})
}

func goodPath(s string) bool {
	return s != "" && len(s) <= 4096 && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// trace reads the file of a trace: a count per second a line; blank lines and # comments are none.
func (d *decoder) trace(a *Arrivals, at place) {
	path := a.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(d.File), path)
	}
	data, err := readFile(path, MaxTraceFile)
	if err != nil {
		d.Problem(at, "%s: want a file with a count per second a line (relative to the scenario file)", strictyaml.Show(err.Error()))
		return
	}
	lines := bufio.NewScanner(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	lines.Buffer(nil, MaxTraceFile+1)
	wrong := func(line int, format string, args ...any) {
		d.Problems = append(d.Problems, strictyaml.Problem{File: path, Line: line, Message: fmt.Sprintf(format, args...)})
	}
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		n, err := strconv.ParseFloat(text, 64)
		switch {
		case err != nil || !strictyaml.IsNumber(text) || n < 0:
			wrong(number, "%s: want the number of calls in a second, such as 417", strictyaml.Show(text))
			return
		case n*a.Scale > MaxRate:
			wrong(number, "%s: want at most %s calls a second after scale %s", strictyaml.Show(text), formatNumber(MaxRate), formatNumber(a.Scale))
			return
		}
		a.Trace = append(a.Trace, n+0)
	}
	if len(a.Trace) == 0 {
		wrong(1, "no counts: want the number of calls in a second on each line")
	}
}

func (d *decoder) downstream(v *Downstream, n *yaml.Node, at place) {
	d.block(n, at,
		entry{"workers", "the number of workers", d.count(&v.Workers, noZero)},
		entry{"service", "the time that a worker takes, such as { distribution: exponential, mean: 20ms }",
			func(n *yaml.Node, at place) { d.service(&v.Service, n, at) }},
		entry{"queue", "", d.count(&v.Queue, noZero)},
		entry{"cancels", "", d.toggle(&v.Cancels)})
}

func (d *decoder) service(v *Service, n *yaml.Node, at place) {
	d.block(n, at,
		entry{"distribution", "one of " + strings.Join(distributions[:], ", "), choice(d, &v.Distribution, distributions[:])},
		entry{"mean", "the mean time, such as 20ms", d.duration(&v.Mean, noZero)},
		entry{"sigma", "", d.number(&v.Sigma, noZero)},
		entry{"alpha", "", d.number(&v.Alpha, noZero)})
	for _, x := range []struct {
		key  string
		of   Distribution
		want string
	}{{"sigma", Lognormal, "the standard deviation of the logarithm, such as 0.8"}, {"alpha", Pareto, "the exponent of the tail, such as 2.5"}} {
		key := at.Key + "." + x.key
		given, known := d.Given(key), d.Given(at.Key+".distribution")
		switch {
		case given && known && v.Distribution != x.of:
			d.Problem(d.At(key), "belongs to %v, not to %v: leave it out", x.of, v.Distribution)
		case !given && known && v.Distribution == x.of:
			d.Problem(d.At(key), "missing: want %s", x.want)
		}
	}
}

// fault reads what is wrong from when to when, with the keys of its kind.
func (d *decoder) fault(f *Fault, n *yaml.Node, at place) {
	own := [][]entry{
		Hang:     {{"latency", "", d.duration(&f.Latency, noZero)}},
		Slow:     {{"factor", "what service times are multiplied with, such as 3", d.number(&f.Factor, noZero)}, {"onset", "", d.duration(&f.Onset, orZero)}},
		Capacity: {{"fraction", "what is left of the workers, such as 0.5", d.number(&f.Fraction, orZero)}},
		Error: {{"probability", "the share of attempts that fail, such as 0.3", d.number(&f.Probability, noZero)},
			{"latency", "", d.duration(&f.Latency, noZero)}},
		Throttle: {{"limit", "attempts a second that are let through", d.number(&f.Limit, noZero)},
			{"retry_after", "", d.duration(&f.RetryAfter, orZero)}},
		Crash: nil,
	}
	entries := []entry{
		{"from", "when it begins, such as 20s", d.duration(&f.From, orZero)},
		{"to", "when it ends, such as 60s", d.duration(&f.To, noZero)},
		{"kind", "one of " + strings.Join(kinds[:], ", "), choice(d, &f.Kind, kinds[:])},
	}
	// The kind comes first, wherever it stands: it says which other keys there are.
	kind := -1
	for key, value := range strictyaml.Pairs(n) {
		if key.Value == "kind" {
			kind = slices.Index(kinds[:], value.Value)
		}
	}
	for k, list := range own {
		for _, e := range list {
			switch {
			case k == kind:
				entries = slices.DeleteFunc(entries, func(o entry) bool { return o.key == e.key })
			case slices.ContainsFunc(entries, func(o entry) bool { return o.key == e.key }):
				continue
			case kind < 0: // which keys there are is not known: one problem is enough
				e = entry{e.key, "", func(*yaml.Node, place) {}}
			default:
				e = entry{e.key, "", d.foreign(Kind(k), Kind(kind), own[kind])}
			}
			entries = append(entries, e)
		}
	}
	d.block(n, at, entries...)
}

// foreign refuses a key of another kind of fault.
func (d *decoder) foreign(of, here Kind, own []entry) reader {
	return func(_ *yaml.Node, at place) {
		takes := "no more than from and to"
		if len(own) > 0 {
			takes = strings.Join(keysOf(own), " and ")
		}
		d.Problem(at, "belongs to kind %v: kind %v takes %s", of, here, takes)
	}
}
