package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
)

// A gateway is an http.Handler, for a program that has a server of its own.
func ExampleNew() {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer service.Close()

	f, err := config.Upstream(service.URL, "", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	g, err := gateway.New(f, gateway.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()

	w := httptest.NewRecorder()
	g.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code, w.Body, w.Header().Get("Cortex-Attempts"), g.Targets()[0].Engine.Pressure().State)
	// Output: 200 hello 1 HEALTHY
}
