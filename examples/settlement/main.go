// Command settlement shows what a slow query in one service does to those above it, with and without guards: a ledger, a wallet
// and a delegation service over gRPC, each with its own engine and tiers, twice over, under the same load at the same time.
//
//	go run ./examples/settlement
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"
)

func main() {
	healthy := flag.Duration("healthy", 4*time.Second, "how long all is well at first")
	slow := flag.Duration("slow", 8*time.Second, "how long the query is slow")
	after := flag.Duration("after", 4*time.Second, "how long it is well again")
	flag.Parse()
	p := phases{*healthy, *slow, *after}
	if p.healthy < 0 || p.slow <= 0 || p.after < 0 || p.length() > time.Hour {
		log.Fatal("settlement: -slow must be more than 0, the others 0 or more, together no more than an hour")
	}
	plain, guarded, err := runBoth(p)
	if err != nil {
		log.Fatal("settlement: ", err)
	}
	report(os.Stdout, p, plain, guarded)
}

// runBoth runs both systems at the same time.
func runBoth(p phases) (plain, guarded *result, err error) {
	plain, guarded = newResult(p), newResult(p)
	without, err := newSystem(false)
	if err != nil {
		return nil, nil, err
	}
	defer without.stop()
	with, err := newSystem(true)
	if err != nil {
		return nil, nil, err
	}
	defer with.stop()
	var wg sync.WaitGroup
	wg.Go(func() { plain.run(without, p) })
	wg.Go(func() { guarded.run(with, p) })
	wg.Wait()
	return plain, guarded, nil
}

func report(w io.Writer, p phases, plain, guarded *result) {
	fmt.Fprintf(w, "The ledger's look-up by account takes %v instead of %v from second %g to %g. Share of the calls answered, %%:\n\n",
		slowTakes, queryTakes, p.healthy.Seconds(), (p.healthy + p.slow).Seconds())
	fmt.Fprintf(w, "          %-44s   %s\n", "without CORTEX", "with CORTEX")
	fmt.Fprintf(w, "%6s  ", "second")
	for range 2 {
		for _, s := range streams {
			fmt.Fprintf(w, "%15s", s.name)
		}
		fmt.Fprint(w, "  ")
	}
	fmt.Fprintln(w)
	for i := range plain.seconds {
		fault := " "
		if t := time.Duration(i) * time.Second; t >= p.healthy && t < p.healthy+p.slow {
			fault = "*"
		}
		fmt.Fprintf(w, "%5d %s ", i, fault)
		for _, r := range []*result{plain, guarded} {
			for j := range streams {
				fmt.Fprintf(w, "%15.1f", r.seconds[i][j].share())
			}
			fmt.Fprint(w, "  ")
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nWhile the query was slow:\n\n%-16s %30s   %30s\n", "", "without CORTEX", "with CORTEX")
	fmt.Fprintf(w, "%-16s", "")
	for range 2 {
		fmt.Fprintf(w, " %9s %9s %10s  ", "answered", "refused", "failed")
	}
	fmt.Fprintln(w)
	for j, s := range streams {
		fmt.Fprintf(w, "%-16s", s.name)
		for _, r := range []*result{plain, guarded} {
			c := &r.fault[j]
			fmt.Fprintf(w, " %9d %9d %10d  ", c.ok.Load(), c.shed.Load(), c.failed.Load())
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nThe wallet's workers, at most busy: %d of %d without, %d with.\n", plain.busiest.Load(), walletWorkers, guarded.busiest.Load())
	fmt.Fprintf(w, "Settlement over the whole run: %.2f %% without, %.2f %% with.\n", plain.total[0].share(), guarded.total[0].share())
}
