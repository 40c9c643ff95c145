//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// script has wrk print its figures as JSON below its own text. A script that only has a done costs nothing while the load runs.
const script = `
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\n{"Requests":%%d,"Micros":%%d,"P50":%%d,"P99":%%d,"Status":%%d,"Broken":%%d,"Timeouts":%%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write, e.timeout))
end
wrk.method = "%s"
if wrk.method == "POST" then wrk.body = string.rep("x", %d) end
`

func scriptFor(method string, body int) []byte { return fmt.Appendf(nil, script, method, body) }

// loadResult is what wrk has counted. Its latencies are those of all answers, and corrected for the requests that a
// connection could not send while it waited for a slow answer.
type loadResult struct {
	Requests int   // answers, whatever their status
	Micros   int64 // that it took
	P50, P99 int64 // µs
	Status   int   // answers of 400 and above
	Broken   int   // connections that were not made or broke
	Timeouts int   // no answer in 5 s
}

func (r loadResult) good() float64 {
	return float64(r.Requests-r.Status) / (time.Duration(r.Micros) * time.Microsecond).Seconds()
}

func (r loadResult) refused() float64 {
	return float64(r.Status) / (time.Duration(r.Micros) * time.Microsecond).Seconds()
}

// runWrk keeps one request in flight on each of conns connections, from one thread.
func runWrk(ctx context.Context, p place, scriptPath, addr string, conns, size int, d time.Duration) (loadResult, error) {
	cmd := p.command(ctx, "wrk", "--threads", "1", "--connections", number(conns),
		"--duration", number(int(d.Seconds()))+"s", "--timeout", "5s", "--script", scriptPath,
		"http://"+addr+"/"+number(size))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return loadResult{}, fmt.Errorf("wrk: %w: %s%s", err, out, &said)
	}
	return parseWrk(out)
}

func parseWrk(out []byte) (loadResult, error) {
	var r loadResult
	at := bytes.LastIndexByte(out, '{')
	if at < 0 {
		return r, fmt.Errorf("wrk: %s: its script printed nothing", out)
	}
	if err := json.Unmarshal(out[at:], &r); err != nil {
		return r, fmt.Errorf("wrk: %w: %s", err, out)
	}
	if r.Requests < r.Status || r.Micros <= 0 {
		return r, fmt.Errorf("wrk: %s: that cannot be", out)
	}
	return r, nil
}
