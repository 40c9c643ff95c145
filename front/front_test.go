package front

import (
	"io"
	"net/http"
	"testing"
)

func TestServes(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }), Limits: Limits{H2C: true}})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	for _, h2 := range []bool{false, true} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(!h2)
		tr.Protocols.SetUnencryptedHTTP2(h2)
		res, err := (&http.Client{Transport: tr}).Get("http://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		t.Log(string(b))
		tr.CloseIdleConnections()
	}
	s.Close()
	if err := <-done; err != http.ErrServerClosed {
		t.Error(err)
	}
}
