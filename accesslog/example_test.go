package accesslog_test

import (
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/accesslog"
)

func Example() {
	log, err := accesslog.Open(accesslog.Config{Path: "-", Sample: 0.01, Errors: 1, Rand: func() float64 { return 0.5 }})
	if err != nil {
		fmt.Println(err)
		return
	}
	call := accesslog.Entry{Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Method: "GET", Path: "/orders/7", Route: "/orders/",
		Target: "orders", Priority: 5, Attempts: 1, Status: 200, BytesOut: 512, Duration: 12 * time.Millisecond}
	log.Log(&call) // one in a hundred of those
	call.Status, call.Reason, call.CPS, call.Attempts = 503, "CIRCUIT_OPEN", 0.81, 0
	log.Log(&call)
	if err := log.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"time":"2026-11-30T12:00:00.000Z","method":"GET","path":"/orders/7","route":"/orders/","target":"orders","priority":5,"attempts":0,"cps":0.8100,"reason":"CIRCUIT_OPEN","status":503,"bytes_in":0,"bytes_out":512,"duration_ms":12.000}
}
