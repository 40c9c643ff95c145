package gateway

import (
	"net/http"
	"os"
	"testing"
)

// Lines that a full disk did not take were in no metric: only those were that waited for too long.
func TestLinesThatAFullDiskDoesNotTakeAreCounted(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	s := realGateway(t, "access_log: {path: /dev/full}\n"+target(realUpstream(t, nil, "http", http.NotFoundHandler()), ""))
	res, err := http.Get("http://" + s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	eventually(t, "the line is counted", func() bool { return s.status().AccessLogDropped == 1 })
}
