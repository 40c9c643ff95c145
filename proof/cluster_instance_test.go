package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

// An order makes a process of this test's own program one instance of a fleet: a program with the library that calls an upstream.
type fleetOrder struct {
	Redis    string // "" = shares nothing
	Upstream string
	Start    int64 // ms since 1970
	Seconds  int
	Load     []fleetLoad // calls a second, from a second on
	Seed     uint64
	Interval time.Duration
	Deadline time.Duration
	Quick    bool // the guard's own cost is measured in calls that do nothing
}

type fleetLoad struct {
	From int
	Rate float64
}

// fleetResult is what an instance tells at its end.
type fleetResult struct {
	Offered, Good, Refused, Failed []int // by second
	// Slowest are the 99th percentiles of what asking, recording and the call of an upstream that does nothing took, by second, in µs.
	P99    []float64
	Status cluster.Status
	Events []string
	Open   []bool // the circuit, by second
}

const fleetEnv = "CORTEX_PROOF_INSTANCE"

func init() {
	text := os.Getenv(fleetEnv)
	if text == "" {
		return
	}
	var o fleetOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := beInstance(&o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func beInstance(o *fleetOrder) error {
	e, err := cortex.New(cortex.Config{Name: "upstream", Deadline: o.Deadline})
	if err != nil {
		return err
	}
	res := fleetResult{}
	var mu sync.Mutex
	status := func() (s cluster.Status) { return s }
	if o.Redis != "" {
		c, err := cluster.New(cluster.Config{URL: o.Redis, Interval: o.Interval, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), OnEvent: func(ev cluster.Event) {
			mu.Lock()
			res.Events = append(res.Events, fmt.Sprintf("%.1f %s", time.Since(time.UnixMilli(o.Start)).Seconds(), ev.Mode))
			mu.Unlock()
		}})
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.Guard(e); err != nil {
			return err
		}
		go func() { // for whoever watches
			for range time.Tick(20 * time.Millisecond) {
				s := c.Status().Targets[0]
				mu.Lock()
				fmt.Printf("%t %d %s\n", s.Prober, s.Epoch, s.Mode)
				mu.Unlock()
			}
		}()
		status = c.Status
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, MaxIdleConns: 512}}
	call := func(ctx context.Context) (struct{}, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.Upstream, nil)
		if err != nil {
			return struct{}{}, err
		}
		req.Header.Set("X-Instance", strconv.FormatUint(o.Seed, 10))
		r, err := client.Do(req)
		if err != nil {
			return struct{}{}, err
		}
		defer r.Body.Close()
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return struct{}{}, err
		}
		if r.StatusCode != http.StatusOK {
			return struct{}{}, fmt.Errorf("status %d", r.StatusCode)
		}
		return struct{}{}, nil
	}
	counts := make([][4]atomic.Int64, o.Seconds)
	took := make([][]float64, o.Seconds)
	res.Open = make([]bool, o.Seconds)
	rng := rand.New(rand.NewPCG(o.Seed, 7))
	start := time.UnixMilli(o.Start)
	time.Sleep(time.Until(start))
	start = time.Now() // monotonic
	priority := func() cortex.Priority {
		switch u := rng.Float64(); {
		case u < 0.1:
			return 9
		case u < 0.4:
			return 7
		case u < 0.8:
			return 5
		}
		return 2
	}
	var calls sync.WaitGroup
	next := time.Duration(0)
	for {
		rate := 0.0
		for _, l := range o.Load {
			if next >= time.Duration(l.From)*time.Second {
				rate = l.Rate
			}
		}
		next += time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
		second := int(next / time.Second)
		if second >= o.Seconds {
			break
		}
		time.Sleep(time.Until(start.Add(next)))
		p := priority()
		counts[second][0].Add(1)
		res.Open[second] = res.Open[second] || e.Pressure().Circuit != breaker.Closed
		if o.Quick {
			t := time.Now()
			_, err := cortex.Do(context.Background(), e, func(context.Context) (struct{}, error) { return struct{}{}, nil }, cortex.WithPriority(p))
			took[second] = append(took[second], float64(time.Since(t))/float64(time.Microsecond))
			counts[second][fleetKind(err)].Add(1)
			continue
		}
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), o.Deadline)
			defer cancel()
			_, err := cortex.Do(ctx, e, call, cortex.WithPriority(p))
			counts[second][fleetKind(err)].Add(1)
		})
	}
	calls.Wait()
	res.Status = status()
	for s := range counts {
		res.Offered, res.Good = append(res.Offered, int(counts[s][0].Load())), append(res.Good, int(counts[s][1].Load()))
		res.Refused, res.Failed = append(res.Refused, int(counts[s][2].Load())), append(res.Failed, int(counts[s][3].Load()))
		p := 0.0
		if n := len(took[s]); n > 0 {
			sort.Float64s(took[s])
			p = took[s][n*99/100]
		}
		res.P99 = append(res.P99, p)
	}
	mu.Lock()
	defer mu.Unlock()
	out, err := json.Marshal(&res)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%s\n", out)
	return err
}

func fleetKind(err error) int {
	var r *cortex.Rejection
	switch {
	case err == nil:
		return 1
	case errors.As(err, &r):
		return 2
	}
	return 3
}
