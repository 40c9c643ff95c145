package front_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex/front"
)

func ExampleServer() {
	s := front.New(front.Config{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello over "+r.Proto) }),
		Limits: front.Limits{H2C: true, ConnectionsPerClient: 1000,
			ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, WriteTimeout: 30 * time.Second},
	})
	l, err := front.Listen("127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	done := make(chan error)
	go func() { done <- s.Serve(l) }()

	res, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		panic(err)
	}
	text, _ := io.ReadAll(res.Body)
	res.Body.Close()
	fmt.Println(string(text))

	s.Shutdown(context.Background())
	fmt.Println(<-done)
	// Output:
	// hello over HTTP/1.1
	// http: Server closed
}
