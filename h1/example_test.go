package h1_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/seed-a29ca62a/cortex/h1"
)

func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello")
	}))
	defer server.Close()

	transport, err := h1.New(h1.Config{MaxIdlePerHost: 64})
	if err != nil {
		panic(err)
	}
	defer transport.CloseIdleConnections()

	client := &http.Client{Transport: transport}
	resp, err := client.Get(server.URL)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(resp.Status, string(body), err)
	// Output: 200 OK hello <nil>
}

// A request of which nothing was sent may be sent again, whatever its method.
func ExampleError_RequestUnsent() {
	server := httptest.NewServer(nil)
	url := server.URL
	server.Close() // nobody listens there any more

	transport, err := h1.New(h1.Config{})
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequest("POST", url, nil)
	if err != nil {
		panic(err)
	}
	_, err = transport.RoundTrip(req)
	if e, ok := errors.AsType[*h1.Error](err); ok {
		fmt.Println(e.Op, e.RequestUnsent())
	}
	// Output: dial true
}
