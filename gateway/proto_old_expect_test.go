package gateway

import (
	"io"
	"net/http"
	"testing"
)

// Expect: 100-continue of HTTP/1.0 is to be ignored: it went on to the target, which a body then waited for.
func TestExpectOfHTTP10DoesNotPass(t *testing.T) {
	for version, want := range map[string]string{"HTTP/1.0": "", "HTTP/1.1": "100-continue"} {
		s := realGateway(t, target(realUpstream(t, nil, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("X-Expect", r.Header.Get("Expect"))
		})), ""))
		c, br := rawConn(t, nil, "http/1.1", s)
		io.WriteString(c, "POST / "+version+"\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
		res, err := http.ReadResponse(br, nil)
		for err == nil && res.StatusCode == http.StatusContinue {
			res, err = http.ReadResponse(br, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get("X-Expect"); res.StatusCode != 200 || got != want {
			t.Errorf("%s: %d, Expect %q at the target, want %q", version, res.StatusCode, got, want)
		}
	}
}
