package gateway

import (
	"fmt"
	"io"
	"net/http"
	"testing"
)

// A request of HTTP/1.0 without a Host went out with an X-Forwarded-Host that said nothing.
func TestRequestWithoutAHostHasNoForwardedHost(t *testing.T) {
	s := realGateway(t, target(realUpstream(t, nil, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Got", fmt.Sprintf("%q", r.Header["X-Forwarded-Host"]))
	})), ""))
	for head, want := range map[string]string{"GET / HTTP/1.0\r\n": "[]", "GET / HTTP/1.0\r\nHost: h\r\n": `["h"]`} {
		c, br := rawConn(t, nil, "http/1.1", s)
		io.WriteString(c, head+"\r\n")
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get("X-Got"); got != want {
			t.Errorf("%q: %s, want %s", head, got, want)
		}
		c.Close()
	}
}
