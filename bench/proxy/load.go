package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// loadResult is what the load generator prints, as JSON.
type loadResult struct {
	PerSecond float64
	P50, P99  float64 // ns
	All       int     // answers, those of the warm-up too
	Bad       int     // of them, not a 200 with a body of the right size: in no other figure
	FirstBad  string  // what one of them began with
}

// runLoad keeps one request in flight on each of its connections. It writes the same bytes over and over and reads no more of
// an answer than it must, because it takes its processor time from what it measures.
func runLoad(args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	addr := flags.String("addr", "", "host:port on the loopback interface")
	conns := flags.Int("conns", 64, "connections")
	size := flags.Int("size", 1<<10, "bytes of a body")
	method := flags.String("method", "GET", "GET or POST")
	duration := flags.Duration("duration", 2*time.Second, "how long, the warm-up not counted")
	warmUp := flags.Duration("warm-up", 300*time.Millisecond, "how long before")
	if err := flags.Parse(args[1:]); err != nil {
		return flag.ErrHelp
	}
	if host, _, err := net.SplitHostPort(*addr); err != nil || !net.ParseIP(host).IsLoopback() {
		return fmt.Errorf("--addr %q: it must be an address on the loopback interface", *addr)
	}
	request := fmt.Sprintf("%s / HTTP/1.1\r\nHost: bench\r\n", *method)
	if *method == "POST" {
		request += fmt.Sprintf("Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s", *size, strings.Repeat("x", *size))
	} else {
		request += "\r\n"
	}

	from := time.Now().Add(*warmUp)
	g := &generator{request: []byte(request), size: *size, from: from, to: from.Add(*duration)}
	workers := make([]worker, *conns)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { workers[i].err = workers[i].run(*addr, g) })
	}
	wg.Wait()

	var r loadResult
	var latencies histogram
	for i := range workers {
		w := &workers[i]
		if w.err != nil {
			return w.err
		}
		r.All += w.all
		r.Bad += w.bad
		if w.bad > 0 {
			r.FirstBad = w.firstBad
		}
		latencies.add(&w.latencies)
	}
	r.PerSecond = float64(latencies.total()) / duration.Seconds()
	r.P50, r.P99 = latencies.quantile(0.50), latencies.quantile(0.99)
	return json.NewEncoder(os.Stdout).Encode(r)
}

type generator struct {
	request  []byte
	size     int
	from, to time.Time // answers in between count
}

type worker struct {
	all, bad  int
	firstBad  string
	latencies histogram
	err       error
}

func (w *worker) run(addr string, g *generator) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(g.to.Add(5 * time.Second)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 8<<10)
	for sent := time.Now(); sent.Before(g.to); {
		if _, err := c.Write(g.request); err != nil {
			return err
		}
		ok, head, err := readAnswer(r, g.size)
		if err != nil {
			return err
		}
		now := time.Now()
		w.all++
		if !ok {
			w.bad++
			w.firstBad = head
		} else if now.After(g.from) && now.Before(g.to) {
			w.latencies.record(now.Sub(sent))
		}
		sent = now
	}
	return nil
}

var errNotHTTP = errors.New("not an answer in HTTP/1.1")

// readAnswer reports whether it was a 200 with a body of that size; if not, how it began.
func readAnswer(r *bufio.Reader, size int) (ok bool, head string, err error) {
	status, err := r.Peek(len("HTTP/1.1 200"))
	if err != nil {
		return false, "", err
	}
	if string(status[:9]) != "HTTP/1.1 " {
		return false, "", errNotHTTP
	}
	if ok = string(status[9:]) == "200"; !ok {
		text, _ := r.Peek(r.Buffered())
		before, _, _ := strings.Cut(string(text), "\r\n\r\n")
		head = strings.ReplaceAll(before, "\r\n", "; ")
	}
	length, err := readHead(r)
	if err != nil {
		return false, "", err
	}
	_, err = r.Discard(length)
	return ok && length == size, head, err
}

// histogram counts latencies in buckets at most 1/16 of their lower bound wide.
type histogram [61 * 16]uint32

func (h *histogram) record(d time.Duration) { h[bucket(d)]++ }

func bucket(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 16 {
		return int(n)
	}
	e := bits.Len64(n) - 5
	return e*16 + int(n>>e)
}

func (h *histogram) add(o *histogram) {
	for i, n := range o {
		h[i] += n
	}
}

func (h *histogram) total() (n uint64) {
	for _, k := range h {
		n += uint64(k)
	}
	return n
}

// quantile is the middle of the bucket that holds it, in ns.
func (h *histogram) quantile(q float64) float64 {
	rank := uint64(q * float64(h.total()))
	for i, k := range h {
		if rank < uint64(k) {
			if i < 16 {
				return float64(i)
			}
			e := i/16 - 1
			return (float64(i-e*16) + 0.5) * float64(uint64(1)<<e)
		}
		rank -= uint64(k)
	}
	return 0
}
