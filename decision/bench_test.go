package decision

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

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
