package h1

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestSmoke(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Len", r.Header.Get("Content-Length"))
		if r.URL.Path == "/chunked" {
			w.(http.Flusher).Flush()
		}
		w.Write(b)
	}))
	defer srv.Close()
	tr, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	for _, path := range []string{"/", "/chunked"} {
		for _, n := range []int{0, 1, 16 << 10, 16<<10 + 1, 1 << 20} {
			for _, known := range []bool{true, false} {
				for _, expect := range []bool{true, false} {
					want := strings.Repeat("x", n)
					var body io.Reader = strings.NewReader(want)
					if !known {
						body = io.MultiReader(body)
					}
					req, _ := http.NewRequest("POST", srv.URL+path, body)
					if expect {
						req.Header.Set("Expect", "100-continue")
					}
					resp, err := c.Do(req)
					if err != nil {
						t.Fatal(path, n, known, expect, err)
					}
					got, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || string(got) != want {
						t.Fatal(path, n, known, expect, err, len(got))
					}
				}
			}
		}
	}
}
