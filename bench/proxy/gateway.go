//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// What is asked of the gateway alone, on its admin port.

// reasons counts what the gateway has refused, and how its attempts have failed, by the names that its metrics have for it.
func reasons(w where) map[string]int {
	resp, err := http.Get("http://" + w.admin + "/metrics")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return reasonsOf(string(text))
}

// reasonsOf reads them off the text of /metrics.
func reasonsOf(text string) map[string]int {
	counts := map[string]int{}
	for line := range strings.Lines(text) {
		for _, family := range []struct{ name, label string }{{"cortex_guard_rejections_total{", `reason="`}, {"cortex_guard_outcomes_total{", `outcome="`}} {
			if !strings.HasPrefix(line, family.name) {
				continue
			}
			_, after, _ := strings.Cut(line, family.label)
			name, after, _ := strings.Cut(after, `"`)
			_, value, _ := strings.Cut(after, "} ")
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err == nil && name != "" {
				counts[name] += int(n)
			}
		}
	}
	return counts
}

// more is what has come to be since before.
func more(now, before map[string]int) map[string]int {
	d := map[string]int{}
	for name, n := range now {
		if n > before[name] && name != "success" {
			d[name] = n - before[name]
		}
	}
	return d
}

// open measures how fast the gateway p refuses with its circuit forced open, the last thing that it does.
func (b *bench) open(ctx context.Context, p *child, w where) (*refusals, error) {
	order, err := http.Post("http://"+w.admin+"/api/v1/targets/upstream/circuit", "application/json", strings.NewReader(`{"state":"open"}`))
	if err != nil {
		return nil, fmt.Errorf("opening the circuit of cortex: %w", err)
	}
	text, _ := io.ReadAll(io.LimitReader(order.Body, 1000))
	order.Body.Close()
	if order.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("opening the circuit of cortex: %s: %s", order.Status, text)
	}
	const conns = 64
	if _, err := runWrk(ctx, b.others, b.script, p.addr, conns, 0, time.Second); err != nil {
		return nil, fmt.Errorf("cortex with its circuit open: %w; %s", err, p.said())
	}
	var all []measurement
	for range b.rounds {
		before := p.cpu()
		r, err := runWrk(ctx, b.others, b.script, p.addr, conns, 0, b.duration)
		switch {
		case err != nil:
			return nil, fmt.Errorf("cortex with its circuit open: %w; %s", err, p.said())
		case r.Status < r.Requests:
			return nil, fmt.Errorf("cortex with its circuit open: %d of %d requests were not refused", r.Requests-r.Status, r.Requests)
		}
		all = append(all, measurement{loadResult: r, cpu: p.cpu() - before, memory: p.memory()})
	}
	return &refusals{Connections: conns,
		PerSecond: median(all, func(m measurement) float64 { return m.refused() }),
		P99Micros: median(all, func(m measurement) float64 { return float64(m.P99) }),
		CPUMicros: median(all, measurement.cpuMicros)}, nil
}
