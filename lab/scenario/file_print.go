package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// YAML is a validated scenario as a file that [Parse] reads: the same scenario again. A trace stands in it by the name of its file,
// or second by second where it has none.
func (s *Scenario) YAML() []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("name: %s", text(s.Name))
	if s.Title != "" {
		line("title: %s", text(s.Title))
	}
	line("duration: %s", formatDuration(s.Duration))
	line("deadline: %s", formatDuration(s.Deadline))
	line("seeds: %d", s.Seeds)
	if s.Hops > 1 {
		line("hops: %d", s.Hops)
	}
	if s.Mark {
		line("mark: true")
	}
	if c := s.Callers; c.Count > 0 {
		line("callers: { count: %d, think: %s }", c.Count, formatDuration(c.Think))
	} else {
		line("arrivals:%s", s.Arrivals.yaml())
	}
	shares := make([]string, len(s.Priorities))
	for i, p := range s.Priorities {
		shares[i] = fmt.Sprintf("%d: %s", p.Priority, formatNumber(p.Share))
	}
	line("priorities: { %s }", strings.Join(shares, ", "))
	timeout := "adaptive"
	if s.Client.Timeout > 0 {
		timeout = formatDuration(s.Client.Timeout)
	}
	line("client: { timeout: %s, max_retries: %d, base_delay: %s }", timeout, s.Client.MaxRetries, formatDuration(s.Client.BaseDelay))
	line("downstream:")
	line("  workers: %d", s.Downstream.Workers)
	v := s.Downstream.Service
	tail := ""
	switch v.Distribution {
	case Lognormal:
		tail = ", sigma: " + formatNumber(v.Sigma)
	case Pareto:
		tail = ", alpha: " + formatNumber(v.Alpha)
	}
	line("  service: { distribution: %v, mean: %s%s }", v.Distribution, formatDuration(v.Mean), tail)
	line("  queue: %d", s.Downstream.Queue)
	line("  cancels: %t", s.Downstream.Cancels)
	if len(s.Faults) > 0 {
		line("faults:")
	}
	for _, f := range s.Faults {
		line("  - { from: %s, to: %s, kind: %v%s }", formatDuration(f.From), formatDuration(f.To), f.Kind, f.yaml())
	}
	return []byte(b.String())
}

// yaml is the keys of the fault's kind.
func (f *Fault) yaml() string {
	switch f.Kind {
	case Hang:
		return ", latency: " + formatDuration(f.Latency)
	case Slow:
		if f.Onset > 0 {
			return fmt.Sprintf(", factor: %s, onset: %s", formatNumber(f.Factor), formatDuration(f.Onset))
		}
		return ", factor: " + formatNumber(f.Factor)
	case Capacity:
		return ", fraction: " + formatNumber(f.Fraction)
	case Error:
		return fmt.Sprintf(", probability: %s, latency: %s", formatNumber(f.Probability), formatDuration(f.Latency))
	case Throttle:
		if f.RetryAfter > 0 {
			return fmt.Sprintf(", limit: %s, retry_after: %s", formatNumber(f.Limit), formatDuration(f.RetryAfter))
		}
		return ", limit: " + formatNumber(f.Limit)
	}
	return ""
}

func (a *Arrivals) yaml() string {
	process := ""
	if a.Process != Poisson {
		process = ", process: " + a.Process.String()
	}
	if len(a.Trace) > 0 && a.File != "" {
		scale := ""
		if a.Scale != 1 {
			scale = ", scale: " + formatNumber(a.Scale)
		}
		return fmt.Sprintf(" { trace: %s%s%s }", text(a.File), scale, process)
	}
	steps := a.Steps
	for i, n := range a.Trace {
		if i == 0 || n != a.Trace[i-1] {
			steps = append(steps, Step{time.Duration(i) * time.Second, n})
		}
	}
	if n := len(a.Trace); n > 0 {
		steps = append(steps, Step{time.Duration(n) * time.Second, 0})
	}
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "\n  - { from: %s, rate: %s%s }", formatDuration(s.From), formatNumber(s.Rate*a.Scale), process)
	}
	return b.String()
}

var (
	plainText = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.+/×% -]*$`)
	noText    = []string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"} // where it stands alone
)

// text writes text, in double quotes unless nothing in it could be taken for anything else.
func text(s string) string {
	if plainText.MatchString(s) && strings.TrimSpace(s) == s && !slices.Contains(noText, strings.ToLower(s)) {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
