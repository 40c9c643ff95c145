package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What the port refuses, before there is a call, a client of gRPC reads as it does all else: problem+json was an "unexpected content-type".
func TestPortRefusesGRPCInItsWords(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		svc := new(grpcService)
		w.h2Serve("up.test:80", svc)
		w.server("server: {max_url_bytes: 128B, max_header_fields: 12, connections_per_client: 2}\n" + strings.Replace(one("timeout: {enabled: false}", ""), "http://up", "h2c://up", 1))
		c := w.h2Client(stranger)
		var many []string
		for _, name := range strings.Fields("A B C D E F G H I J K L M") {
			many = append(many, "X-"+name, "1")
		}
		check := func(what, path, code, pushback string, header ...string) {
			t.Helper()
			res, err := grpcCall(t.Context(), c, "http://gateway.test:80"+path, http.NoBody, header...)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			defer res.Body.Close()
			h := res.Header
			if res.StatusCode != 200 || h.Get("Content-Type") != "application/grpc" || h.Get("Grpc-Status") != code || h.Get("Grpc-Message") == "" ||
				h.Get("Grpc-Retry-Pushback-Ms") != pushback || res.ContentLength > 0 {
				t.Errorf("%s: %d %v", what, res.StatusCode, h)
			}
		}
		check("a long path", "/svc/"+strings.Repeat("x", 200), "8", "")
		check("many fields", "/svc/unary", "8", "", many...)
		for range 2 {
			body, end := io.Pipe()
			defer end.Close()
			go func() {
				if res, err := grpcCall(t.Context(), c, "http://gateway.test:80/svc/bidi", body); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
		}
		time.Sleep(time.Second)
		check("too many requests", "/svc/unary", "14", "1000")
	})
}
