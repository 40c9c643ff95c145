//go:build linux

// Proxy measures what the gateway costs beside the proxies that people know, in front of the same upstream, loaded in turn by
// wrk in one run.
//
//	go run ./proxy             everything: 1, 64 and 1,024 connections, answers of 1 KiB and 100 KiB; some seven minutes
//	go run ./proxy --quick     64 connections and 1 KiB; under a minute
//	go run ./proxy --check     exits 1 when the floor is missed: 0.95 of the requests a second of bare, and more than Caddy's
//
// It runs on Linux and needs Go, wrk, nginx and haproxy (Debian's packages of these names). Caddy is built from its Go module, once
// for a user, which takes a minute or two more. A subject whose program is missing is left out, unless CORTEX_REQUIRE_SERVICES is 1.
//
// # What is measured
//
// Every proxy is a process of its own with one thread that does the work, held to the machine's last processor; wrk, with one
// thread, and the upstream are held to the others. A machine with one processor has all of them share it. A round loads each
// proxy once, in alternating order, the first round after a second that does not count; the medians of the rounds' ratios are
// what the goals are about, so a machine that grows slower meanwhile does no harm. wrk connects anew each time, which is a part
// of the figures; what it broke off at the end is over before the next proxy's turn. Requests a second count good answers only.
// CPU a request is user and system time of the proxy's processes, memory what they have resident after the load. "busy" is how
// much of its processor a proxy used: where it is clearly below 1 at many connections, the load was at its limit, or others used
// the machine, and the proxy may be faster than it looks.
//
// Refused requests a second are those of the gateway when its circuit has been forced open on the admin port.
//
// # The subjects
//
// All of them keep connections to clients and to the upstream alive without limit, so that none is made twice, and tell the
// upstream X-Forwarded-For, -Host and -Proto. What is not named here has the program's default; the files are in subjects.go.
//
//   - bare: httputil.ReverseProxy and http.Transport. GOMAXPROCS=1, as for all that is Go.
//   - bare+pool: with a BufferPool, the one option of ReverseProxy that is free speed.
//   - cortex: `cortex serve` with a configuration file: retries, circuit, shedding, adaptive timeouts, admin port, limits, and
//     an access log of all calls in a file, some 300 bytes each. Of its own accord it lets the heap grow to five times what is
//     live (GOGC=400), where bare and caddy have Go's default of twice.
//   - caddy: `caddy run` with reverse_proxy; no admin port, no access log, no compression to the upstream.
//   - nginx: worker_processes 1, proxy_http_version 1.1, buffering as it is; no access log.
//   - haproxy: nbthread 1; no log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	commands := map[string]func([]string) error{"upstream": serveUpstream, "bare": serveBare, "bare+pool": serveBare}
	var err error
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		stop() // a child ends at once
		err = commands[os.Args[1]](os.Args[1:])
	} else {
		err = compare(ctx, os.Args[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	rounds       int
	duration     time.Duration
	conns, sizes []int
	method       string
	only         []string
	format       string
	check        bool
	tolerance    float64
}

func parse(args []string) (options, error) {
	o := options{conns: []int{1, 64, 1024}, sizes: []int{1 << 10, 100 << 10}}
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "64 connections, bodies of 1 KiB, 5 rounds of 1 s")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, 1 to 100")
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "load on each proxy in a round, whole seconds, 1s to 1m")
	flags.Func("conns", "connections, 1 to 4096, separated by commas (default 1,64,1024)", numbers(&o.conns, 1, keptConns))
	flags.Func("size", "bytes of a body, 0 to 1048576, separated by commas (default 1024,102400)", numbers(&o.sizes, 0, maxBody))
	flags.StringVar(&o.method, "method", "GET", "GET, or POST to send a body of that size too")
	only := flags.String("only", "", "subjects, separated by commas (default all)")
	flags.StringVar(&o.format, "format", "table", "table, md or json")
	flags.BoolVar(&o.check, "check", false, "exit 1 when the floor is missed")
	flags.Float64Var(&o.tolerance, "tolerance", 0, "with --check: the share by which the floor may be missed, 0 to below 1, for busy machines")
	if err := flags.Parse(args); err != nil {
		return o, flag.ErrHelp
	}
	if *quick {
		set := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
		if !set["conns"] {
			o.conns = []int{64}
		}
		if !set["size"] {
			o.sizes = []int{1 << 10}
		}
		if !set["duration"] {
			o.duration = time.Second
		}
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(subjects, func(s subject) bool { return s.name == name }) {
			return o, fmt.Errorf("--only %s: there is no such subject", name)
		}
	}
	if o.method == "POST" && len(o.sizes) > 1 {
		return o, errors.New("--method POST goes with one --size")
	}
	if o.check && !(o.measures("bare") && o.measures("cortex") && o.measures("caddy")) {
		return o, errors.New("--check needs bare, caddy and cortex")
	}
	if flags.NArg() > 0 || o.rounds < 1 || o.rounds > 100 || o.duration < time.Second || o.duration > time.Minute || o.duration%time.Second != 0 ||
		o.method != "GET" && o.method != "POST" || !slices.Contains([]string{"table", "md", "json"}, o.format) || !(o.tolerance >= 0 && o.tolerance < 1) {
		flags.Usage()
		return o, flag.ErrHelp
	}
	return o, nil
}

func (o options) measures(name string) bool { return o.only == nil || slices.Contains(o.only, name) }

func number(n int) string { return strconv.Itoa(n) }

func numbers(p *[]int, lo, hi int) func(string) error {
	return func(text string) error {
		*p = nil
		for f := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(f)
			if err != nil || n < lo || n > hi {
				return fmt.Errorf("%q is not a number from %d to %d", f, lo, hi)
			}
			*p = append(*p, n)
		}
		return nil
	}
}

func compare(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	r, err := run(ctx, o)
	if err != nil {
		return err
	}
	if err := r.print(os.Stdout, o.format); err != nil {
		return err
	}
	if missed := r.missed(o.tolerance); o.check && len(missed) > 0 {
		return fmt.Errorf("the floor is missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// A bench is what the subjects are loaded with and on.
type bench struct {
	options
	dir, script   string
	proxy, others place
	programs      map[string]string
	running       []*child
}

func run(ctx context.Context, o options) (*result, error) {
	dir, err := os.MkdirTemp("", "cortex-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, dir: dir, script: filepath.Join(dir, "wrk.lua"), programs: map[string]string{}}
	defer b.stop()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	upstream, err := freeAddr()
	if err != nil {
		return nil, err
	}
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if _, err := b.start(start(ctx, b.others, dir, "upstream", upstream, own, "upstream", "--listen", upstream)); err != nil {
		return nil, err
	}

	r := &result{Processors: runtime.NumCPU(), Rounds: o.rounds, Duration: o.duration.String(), Method: o.method}
	var proxies []*child
	var cortex where
	for _, s := range subjects {
		if b.programs[s.name] == "" {
			continue
		}
		w := where{dir: filepath.Join(dir, s.name), upstream: upstream}
		if w.listen, err = freeAddr(); err != nil {
			return nil, err
		}
		if w.admin, err = freeAddr(); err != nil {
			return nil, err
		}
		p, err := b.start(s.serve(ctx, b.proxy, w, b.programs[s.name]))
		if err != nil {
			return nil, err
		}
		if s.name == "cortex" {
			cortex = w
		}
		proxies = append(proxies, p)
		r.Subjects = append(r.Subjects, s.name)
	}
	for _, size := range o.sizes {
		for _, conns := range o.conns {
			before := reasons(cortex)
			c, err := b.cell(ctx, proxies, conns, size)
			if err != nil {
				return nil, err
			}
			c.Reasons = more(reasons(cortex), before)
			r.Cells = append(r.Cells, c)
			if info, err := os.Stat(cortex.accessLog()); c.Subjects["cortex"] != nil && (err != nil || info.Size() == 0) {
				return nil, fmt.Errorf("cortex has written no access log, which is a part of what is to be measured: %v", err)
			}
		}
	}
	if i := slices.Index(r.Subjects, "cortex"); i >= 0 {
		if r.Open, err = b.open(ctx, proxies[i], cortex); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// prepare finds or makes everything that is to run.
func (b *bench) prepare(ctx context.Context) error {
	for _, program := range []string{"wrk", "taskset"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing (apt-get install wrk util-linux): nothing can be measured without it", program)
		}
	}
	if n := runtime.NumCPU(); n > 1 {
		b.proxy, b.others = place(number(n-1)), place(fmt.Sprintf("0-%d", n-2))
	}
	const files = 4*keptConns + 1000
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	l.Cur, l.Max = max(l.Cur, files), max(l.Max, files)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil { // set by hand, it is inherited
		fmt.Fprintf(os.Stderr, "proxy: the limit of open files stays below %d: %v\n", files, err)
	}
	if err := os.WriteFile(b.script, scriptFor(b.method, b.sizes[0]), 0o600); err != nil {
		return err
	}
	for _, s := range subjects {
		if !b.measures(s.name) {
			continue
		}
		program, err := s.prepare(ctx, b.dir)
		switch {
		case errors.Is(err, errMissing) && os.Getenv("CORTEX_REQUIRE_SERVICES") != "1":
			fmt.Fprintf(os.Stderr, "proxy: without %s: %v\n", s.name, err)
		case err != nil:
			return fmt.Errorf("%s: %w", s.name, err)
		default:
			b.programs[s.name] = program
		}
	}
	return nil
}

// start keeps a child to be stopped.
func (b *bench) start(c *child, err error) (*child, error) {
	if err == nil {
		b.running = append(b.running, c)
	}
	return c, err
}

func (b *bench) stop() {
	for _, c := range slices.Backward(b.running) {
		c.stop()
	}
}

// cell loads the proxies in rounds, all in the same way.
func (b *bench) cell(ctx context.Context, proxies []*child, conns, size int) (*cell, error) {
	c := &cell{Connections: conns, Bytes: size, measured: map[string][]measurement{}}
	for round := range b.rounds {
		order := slices.Clone(proxies)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			if round == 0 { // connections, pools, the heap, what the guard has learnt
				if _, err := runWrk(ctx, b.others, b.script, p.addr, conns, size, time.Second); err != nil {
					return nil, fmt.Errorf("%s: %w; %s", p.name, err, p.said())
				}
			}
			before := p.cpu()
			r, err := runWrk(ctx, b.others, b.script, p.addr, conns, size, b.duration)
			if err != nil {
				return nil, fmt.Errorf("%s: %w; %s", p.name, err, p.said())
			}
			c.measured[p.name] = append(c.measured[p.name], measurement{loadResult: r, cpu: p.cpu() - before, memory: p.memory()})
			p.settle()
		}
	}
	c.summarize()
	return c, nil
}
