package cortexhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// Guard an http.Client: its transport asks the engine, retries what may be retried, and says what it did.
func ExampleNewTransport() {
	var n atomic.Int32
	ledger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable) // a hiccup
			return
		}
		io.WriteString(w, "42.00")
	}))
	defer ledger.Close()

	engine, err := cortex.New(cortex.Config{Name: "ledger", Backoff: backoff.Config{Base: time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := cortexhttp.NewTransport(cortexhttp.TransportConfig{Engine: engine})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	var report cortexhttp.Report
	ctx := cortexhttp.WithReport(cortexhttp.WithPriority(context.Background(), 9), &report)
	req, err := http.NewRequestWithContext(ctx, "GET", ledger.URL+"/balance", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, cortex.ErrRejected): // not sent: the circuit is open, or the call was shed
		fmt.Println("try again later:", err)
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	balance, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(balance), err)
	fmt.Println("attempts:", report.Attempts)
	// Output:
	// 200 42.00 <nil>
	// attempts: 2
}

// One engine per host, of a bounded number.
func ExampleTransportConfig_select() {
	registry := cortex.NewRegistry(func(host string) cortex.Config { return cortex.Config{MaxRetries: 2} }, 100)
	transport, err := cortexhttp.NewTransport(cortexhttp.TransportConfig{
		Select: func(r *http.Request) (*cortex.Engine, error) { return registry.Engine(r.URL.Host) },
	})
	fmt.Println(transport != nil, err)
	// Output: true <nil>
}
