package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Whatever a target called Cortex-Something passed to clients as if the gateway had said it.
func TestTargetsDoNotSpeakForTheGateway(t *testing.T) {
	for _, q := range []struct {
		name, target string
		kept         []string
	}{
		{"a guard perhaps", "", []string{"Cortex-Fallback", "Cortex-Reason", "Cortex-Retry"}},
		{"a stranger", "remote: {trust: 0}", []string{"Cortex-Retry"}},
	} {
		inProtocols(t, one(q.target+"\nretry: {max_retries: 0}", "fallback: {cache: {}}"), func() http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				names := []string{"Cortex-Reason", "Cortex-Retry", "Cortex-Fallback", "Cortex-Attempts", "Cortex-Pressure", "Cortex-Explain", "Cortex-Future", "Cortex_Reason", "Cortex_Attempts"}
				for _, name := range names {
					w.Header()[name] = []string{"theirs"}
				}
				w.Header().Set("Content-Type", "text/plain")
				if r.URL.Path == "/trailer" {
					w.Header()["Trailer"] = names
					w.WriteHeader(200)
					w.(http.Flusher).Flush()
				}
			})
		}, func(t *testing.T, w *world, s *Server, c *http.Client, _ http.Handler) {
			for _, path := range []string{"/", "/trailer"} {
				res, err := c.Get("http://gateway.test:80" + path)
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				var theirs []string
				for _, h := range []http.Header{res.Header, res.Trailer} {
					for name, v := range h {
						if strings.HasPrefix(name, "Cortex") && slices.Contains(v, "theirs") {
							theirs = append(theirs, name)
						}
					}
				}
				if slices.Sort(theirs); !slices.Equal(slices.Compact(theirs), q.kept) {
					t.Errorf("%s: %s: %v passed, want %v", q.name, path, theirs, q.kept)
				}
				if v := res.Header["Cortex-Attempts"]; len(v) != 1 || v[0] != "1" {
					t.Errorf("%s: %s: attempts %v", q.name, path, v)
				}
			}
			if n := s.Gateway().trafficOf(s.Gateway().Targets()[0]).CacheEntries; n != 0 {
				t.Errorf("%s: what is a fallback below was kept", q.name)
			}
		})
	}
}
