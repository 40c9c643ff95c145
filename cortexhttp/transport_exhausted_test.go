package cortexhttp

import (
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
)

// Descriptors that ran out here opened the circuit of a target that was well.
func TestExhaustionOfThisMachineIsNeutral(t *testing.T) {
	for _, no := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		e, err := cortex.New(cortex.Config{Name: "t", Backoff: backoff.Config{Base: time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", no)}
		})})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			r, _ := http.NewRequest("POST", "http://x.test/", nil)
			if _, err := tr.RoundTrip(r); err == nil {
				t.Fatal("no error")
			}
		}
		if s := e.Stats(); s.Failures != 0 || s.Neutral < 20 || s.Retries == 0 {
			t.Errorf("%v: %+v", no, s)
		}
	}
}
