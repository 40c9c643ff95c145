package decision

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// The goal: 2,000 decisions a second on loopback, the 99th percentile of their latency at most 1 ms.
//
//	CORTEX_SLOW=1 go test -run TestLatency -v ./decision
func TestLatency(t *testing.T) {
	if os.Getenv("CORTEX_SLOW") == "" {
		t.Skip("measures for seconds: set CORTEX_SLOW=1")
	}
	w := newWorld(t)
	began := time.Now()
	w.service.Now = func() time.Duration { return time.Hour + time.Since(began) }
	go func() {
		for t.Context().Err() == nil {
			w.ns.Store(int64(time.Hour + time.Since(began)))
			time.Sleep(time.Millisecond)
		}
	}()
	h2 := h2c(t)
	for _, c := range []struct {
		name string
		rpc  pb.DecisionServiceClient
	}{
		{"JSON over HTTP/1.1", pb.NewDecisionServiceClient(w.client, w.url, connect.WithProtoJSON())},
		{"gRPC", pb.NewDecisionServiceClient(h2, w.url, connect.WithGRPC())},
	} {
		const rate, seconds, clients = 2000, 3, 8
		took := make([][]time.Duration, clients)
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				time.Sleep(time.Second / rate * time.Duration(i)) // not all at the same moment
				tick := time.NewTicker(time.Second * clients / rate)
				defer tick.Stop()
				for n := range rate * seconds / clients {
					<-tick.C
					at := time.Now()
					_, err := c.rpc.Decide(background, &pb.DecideRequest{Target: ptr(fmt.Sprintf("t%d", n%5)), Priority: ptr(int32(5)), Attempt: ptr(int32(0)),
						LatencyMs: ptr(20.0), Error: &pb.Error{HttpStatus: ptr(int32(503))}})
					if err != nil {
						t.Error(err)
						return
					}
					took[i] = append(took[i], time.Since(at))
				}
			})
		}
		start := time.Now()
		wg.Wait()
		all := slices.Concat(took...)
		slices.Sort(all)
		if len(all) == 0 {
			t.Fatal("nothing was measured")
		}
		p := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))].Round(time.Microsecond) }
		t.Logf("%s: %.0f decisions/s, P50 %v, P99 %v, P99.9 %v", c.name, float64(len(all))/time.Since(start).Seconds(), p(0.5), p(0.99), p(0.999))
	}
}

func BenchmarkDecideJSON(b *testing.B) {
	h := newHandler(b)
	body := []byte(`{"target":"a","priority":5,"attempt":0,"error":{"http_status":503},"latency_ms":12.5}`)
	b.ReportAllocs()
	for b.Loop() {
		if rec := h.serve("Decide", body); rec.Code != http.StatusOK {
			b.Fatal(rec.Body)
		}
	}
}

// 1,000 reports in one request.
func BenchmarkReportBatch(b *testing.B) {
	h := newHandler(b)
	body := []byte(`{"reports":[` + strings.TrimSuffix(strings.Repeat(`{"target":"a","outcome":"success","latency_ms":12.5},`, 1000), ",") + `]}`)
	b.ReportAllocs()
	for b.Loop() {
		if rec := h.serve("ReportBatch", body); rec.Code != http.StatusOK {
			b.Fatal(rec.Body)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/report")
	var out struct{ Counted int }
	if json.Unmarshal(h.serve("ReportBatch", body).Body.Bytes(), &out); out.Counted != 1000 {
		b.Errorf("%d counted", out.Counted)
	}
}
