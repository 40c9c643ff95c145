// Proxy measures what the gateway costs: a bare httputil.ReverseProxy and CORTEX in front of the same upstream, loaded in
// turn in one run.
//
//	go run ./proxy             prints requests a second of each and their ratio, in about a minute
//	go run ./proxy --check     exits 1 when the gateway moves less than 0.9 of what the bare proxy does
//
// Upstream, proxies and load are processes of their own, children of this one on the loopback interface, so that they share
// processors but no runtime. A round loads each proxy once, in alternating order; the rounds' ratios are what counts, so a
// machine that grows slower meanwhile does no harm.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// goal is the share of the bare proxy's requests a second that the gateway must move.
const goal = 0.9

func main() {
	commands := map[string]func([]string) error{"upstream": serveUpstream, "bare": serveProxy, "bare+pool": serveProxy, "cortex": serveProxy, "load": runLoad}
	var err error
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		err = commands[os.Args[1]](os.Args[1:])
	} else {
		err = compare(os.Args[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

// subjects are loaded in this order and, every other round, in the opposite one. The pool is the one option of ReverseProxy
// that is free speed for whoever sets it; the goal is set against the bare one.
var subjects = []string{"bare", "cortex", "bare+pool"}

// A measurement is one subject's part of one round.
type measurement struct {
	loadResult
	cpu time.Duration // of the proxy, a request; 0 = not known
}

func compare(args []string) error {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	rounds := flags.Int("rounds", 7, "rounds, 1 to 100")
	duration := flags.Duration("duration", 2*time.Second, "load on each proxy in a round, 100ms to 1m")
	conns := flags.Int("conns", 64, "connections, 1 to 1024")
	size := flags.Int("size", 1<<10, "bytes of a body, 0 to 1048576")
	method := flags.String("method", "GET", "GET, or POST to send a body too")
	check := flags.Bool("check", false, "exit 1 when the goal is missed")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if flags.NArg() > 0 || *rounds < 1 || *rounds > 100 || *duration < 100*time.Millisecond || *duration > time.Minute ||
		*conns < 1 || *conns > 1024 || *size < 0 || *size > 1<<20 || *method != "GET" && *method != "POST" {
		flags.Usage()
		return flag.ErrHelp
	}
	life := time.Duration(*rounds*len(subjects))*(*duration+time.Second) + time.Minute
	number := strconv.Itoa

	upstream, err := start(life, "upstream", "--size", number(*size))
	if err != nil {
		return err
	}
	defer upstream.stop()
	proxies := map[string]*child{}
	for _, s := range subjects {
		p, err := start(life, s, "--upstream", upstream.addr, "--conns", number(*conns))
		if err != nil {
			return err
		}
		defer p.stop()
		proxies[s] = p
	}

	measured := map[string][]measurement{}
	for round := range *rounds {
		order := slices.Clone(subjects)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, s := range order {
			m, err := load(proxies[s], "--conns", number(*conns), "--size", number(*size), "--method", *method, "--duration", duration.String())
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			measured[s] = append(measured[s], m)
		}
	}
	ratio := report(measured, *conns, *size, *method)
	if *check && ratio < goal {
		return fmt.Errorf("the gateway moves %.3f of the bare proxy's requests a second, the goal is %.2f", ratio, goal)
	}
	return nil
}

// load runs the load generator against a proxy.
func load(p *child, args ...string) (measurement, error) {
	before := p.cpu()
	cmd := exec.Command(self(), append([]string{"load", "--addr", p.addr}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return measurement{}, fmt.Errorf("load: %w", err)
	}
	var m measurement
	if err := json.Unmarshal(out, &m.loadResult); err != nil {
		return measurement{}, fmt.Errorf("load: %w", err)
	}
	if m.Bad > m.All/100 {
		return m, fmt.Errorf("%d of %d answers were not what the upstream sent: %s", m.Bad, m.All, m.FirstBad)
	}
	if after := p.cpu(); after > before && m.All > 0 {
		m.cpu = (after - before) / time.Duration(m.All)
	}
	return m, nil
}

// report prints everything and returns the ratio that the goal is about.
func report(measured map[string][]measurement, conns, size int, method string) float64 {
	fmt.Printf("%s, %d connections, bodies of %d bytes; medians of %d rounds\n\n", method, conns, size, len(measured["bare"]))
	fmt.Printf("%-10s %12s %10s %10s %14s %9s\n", "", "requests/s", "p50", "p99", "CPU/request", "refused")
	for _, s := range subjects {
		m := measured[s]
		refused := 0
		for _, m := range m {
			refused += m.Bad
		}
		fmt.Printf("%-10s %12.0f %10s %10s %14s %9d\n", s, median(m, func(m measurement) float64 { return m.PerSecond }),
			duration(median(m, func(m measurement) float64 { return m.P50 })), duration(median(m, func(m measurement) float64 { return m.P99 })),
			duration(median(m, func(m measurement) float64 { return float64(m.cpu) })), refused)
	}
	for _, s := range subjects {
		for _, m := range measured[s] {
			if m.Bad > 0 {
				fmt.Printf("%s refused %d of %d, for instance: %s\n", s, m.Bad, m.All, m.FirstBad)
			}
		}
	}
	ratio := median(ratios(measured["cortex"], measured["bare"]), func(f float64) float64 { return f })
	verdict := "met"
	if ratio < goal {
		verdict = "MISSED"
	}
	fmt.Printf("\ncortex / bare, requests/s: median of the rounds' ratios %.3f, goal at least %.2f: %s\n", ratio, goal, verdict)
	fmt.Print("rounds:")
	for _, r := range ratios(measured["cortex"], measured["bare"]) {
		fmt.Printf(" %.3f", r)
	}
	fmt.Printf("\ncortex / bare+pool: %.3f\n", median(ratios(measured["cortex"], measured["bare+pool"]), func(f float64) float64 { return f }))
	return ratio
}

func ratios(a, b []measurement) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i].PerSecond / b[i].PerSecond
	}
	return r
}

func median[T any](all []T, of func(T) float64) float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = of(all[i])
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// duration prints nanoseconds for people.
func duration(ns float64) string {
	if ns >= 1e6 {
		return fmt.Sprintf("%.2f ms", ns/1e6)
	}
	return fmt.Sprintf("%.1f µs", ns/1e3)
}
