// Ratios measures the guard and its peers in turn, in one process, and holds what it finds against the goals.
//
//	go run ./ratios            prints the table, in less than a minute
//	go run ./ratios --check    exits 1 when a goal is missed by more than --tolerance
//
// A machine that others use too disturbs whatever runs at that moment, so the subjects take turns in short rounds until each
// has had enough rounds in which it did not wait for a processor, and of these the median counts. The minimum would flatter
// at 2 procs: with the other processor taken away for a moment, nothing contends.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/seed-a29ca62a/cortex/bench"
)

// A goal is a bound on the cost of one subject, as a multiple of a peer's.
type goal struct {
	subject, peer string
	procs         []int
	most          float64
}

var goals = []goal{
	{"GuardClosed", "GobreakerRolling60s", []int{1}, 0.65},
	{"GuardClosed", "GobreakerRolling60s", []int{2}, 0.40},
	{"GuardOpen", "GobreakerOpen", []int{1, 2}, 0.60},
	{"Do", "FailsafeRetryBreaker", []int{1, 2}, 0.40},
	{"DoWithTimeout", "FailsafeRetryBreakerTimeout", []int{1, 2}, 0.60},
}

// allocationFree is the subject that must not allocate.
const allocationFree = "GuardClosed"

var procCounts = []int{1, 2}

type key struct {
	subject string
	procs   int
}

// figure is what the rounds of a subject found.
type figure struct {
	rounds []round
	calm   int     // rounds without disturbance
	ns     float64 // that counts
	allocs int64
	bytes  int64
}

type round struct {
	ns     float64
	waited float64 // for a processor, as a share of the time
}

// disturbed is the share of the time waited from which on a round does not count.
const disturbed = 0.03

func (f *figure) add(r round) {
	f.rounds = append(f.rounds, r)
	if r.waited < disturbed {
		f.calm++
	}
}

// settle takes the median of the n calmest rounds.
func (f *figure) settle(n int) {
	r := slices.SortedFunc(slices.Values(f.rounds), func(a, b round) int { return cmp.Compare(a.waited, b.waited) })
	r = r[:min(n, len(r))]
	slices.SortFunc(r, func(a, b round) int { return cmp.Compare(a.ns, b.ns) })
	f.ns = r[len(r)/2].ns
}

// waited is how long this process's threads have waited for a processor, where the system tells (Linux), else 0.
func waited() time.Duration {
	var sum time.Duration
	threads, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, t := range threads {
		text, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		if field := strings.Fields(string(text)); len(field) > 1 { // run time, waiting time, slices
			ns, _ := strconv.ParseInt(field[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

func main() {
	testing.Init()
	rounds := flag.Int("rounds", 9, "undisturbed rounds wanted of each subject, 1 to 100")
	slice := flag.Duration("slice", 100*time.Millisecond, "length of one measurement, 1ms to 10s")
	limit := flag.Duration("limit", 45*time.Second, "when to do with what there is, 1s to 1h")
	check := flag.Bool("check", false, "exit 1 when a goal is missed")
	tolerance := flag.Float64("tolerance", 0.10, "by how much a goal may be missed with --check, as a share of it")
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 || *rounds > 100 || *slice < time.Millisecond || *slice > 10*time.Second ||
		*limit < time.Second || *limit > time.Hour || !(*tolerance >= 0) {
		flag.Usage()
		os.Exit(2)
	}
	figures, err := measure(*rounds, *slice, time.Now().Add(*limit))
	if err != nil {
		fmt.Fprintln(os.Stderr, "ratios:", err)
		os.Exit(1)
	}
	printFigures(os.Stdout, figures)
	printDisturbance(os.Stdout, figures, *rounds)
	missed := printGoals(os.Stdout, figures, *tolerance)
	if *check && missed {
		os.Exit(1)
	}
}

// measure runs every subject at every number of processors, round after round.
func measure(rounds int, slice time.Duration, limit time.Time) (map[key]*figure, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	figures := map[key]*figure{}
	iterations := map[key]int{}
	for done := false; !done; {
		done = true
		for _, procs := range procCounts {
			runtime.GOMAXPROCS(procs)
			for _, s := range bench.Subjects {
				k := key{s.Name, procs}
				f := figures[k]
				if f == nil { // the first time, find out how many iterations make a slice
					r, _, err := run(s, procs, (slice / 5).String())
					if err != nil {
						return nil, err
					}
					f = &figure{allocs: r.AllocsPerOp(), bytes: r.AllocedBytesPerOp()}
					figures[k] = f
					iterations[k] = max(1, int(int64(slice)*int64(r.N)/int64(r.T)))
				}
				if f.calm >= rounds || len(f.rounds) > 0 && time.Now().After(limit) {
					continue
				}
				r, waited, err := run(s, procs, strconv.Itoa(iterations[k])+"x")
				if err != nil {
					return nil, err
				}
				f.add(round{float64(r.T) / float64(r.N), waited})
				done = false
			}
		}
	}
	for _, f := range figures {
		f.settle(rounds)
	}
	return figures, nil
}

// run measures one subject and what share of the time it waited for a processor.
func run(s bench.Subject, procs int, benchtime string) (testing.BenchmarkResult, float64, error) {
	if err := flag.Set("test.benchtime", benchtime); err != nil {
		return testing.BenchmarkResult{}, 0, err
	}
	runtime.GC() // what one subject left behind is not the next one's cost
	start, before := time.Now(), waited()
	r := testing.Benchmark(s.Run)
	share := float64(waited()-before) / float64(time.Since(start))
	if r.N == 0 || r.T <= 0 {
		return r, 0, fmt.Errorf("%s at %d procs failed; go test -bench '^Benchmark%s$' -cpu %d shows why", s.Name, procs, s.Name, procs)
	}
	return r, share, nil
}

func printFigures(w io.Writer, figures map[key]*figure) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "subject\t")
	for _, p := range procCounts {
		fmt.Fprintf(tw, "ns/op at %d\t", p)
	}
	fmt.Fprintln(tw, "B/op\tallocs/op\t")
	for _, s := range bench.Subjects {
		fmt.Fprintf(tw, "%s\t", s.Name)
		for _, p := range procCounts {
			f := figures[key{s.Name, p}]
			fmt.Fprintf(tw, "%.1f\t", f.ns)
		}
		f := figures[key{s.Name, procCounts[0]}]
		fmt.Fprintf(tw, "%d\t%d\t\n", f.bytes, f.allocs)
	}
	_ = tw.Flush()
}

// printDisturbance warns of figures that are not to be trusted.
func printDisturbance(w io.Writer, figures map[key]*figure, rounds int) {
	n := 0
	for _, f := range figures {
		if f.calm < rounds {
			n++
		}
	}
	if n > 0 {
		fmt.Fprintf(w, "\nThe machine was busy: %d of %d figures have fewer than %d undisturbed rounds. Run it again when it is idle.\n",
			n, len(figures), rounds)
	}
}

// printGoals reports whether any goal was missed beyond the tolerance.
func printGoals(w io.Writer, figures map[key]*figure, tolerance float64) (missed bool) {
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "goal\tprocs\tratio\tat most\t")
	for _, p := range procCounts {
		for _, g := range goals {
			if !slices.Contains(g.procs, p) {
				continue
			}
			ratio := figures[key{g.subject, p}].ns / figures[key{g.peer, p}].ns
			verdict := "met"
			switch {
			case ratio > g.most*(1+tolerance):
				verdict, missed = "MISSED", true
			case ratio > g.most:
				verdict = "missed, within tolerance"
			}
			fmt.Fprintf(tw, "%s / %s\t%d\t%.3f\t%.2f\t%s\n", g.subject, g.peer, p, ratio, g.most, verdict)
		}
	}
	for _, p := range procCounts {
		n, verdict := figures[key{allocationFree, p}].allocs, "met"
		if n > 0 {
			verdict, missed = "MISSED", true
		}
		fmt.Fprintf(tw, "%s allocations\t%d\t%d\t0\t%s\n", allocationFree, p, n, verdict)
	}
	_ = tw.Flush()
	return missed
}
