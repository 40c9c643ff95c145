package h1

import (
	"net/http"
	"testing"
)

// An answer that ended its connection lost its Connection field, and with it the names of the fields that a proxy has to take away.
func TestClosingAnswerKeepsTheNamesOfItsConnection(t *testing.T) {
	for value, kept := range map[string]bool{"close": false, " Close": false, "close, X-Hop": true, "X-Hop, close": true, "X-Hop": true} {
		head := "HTTP/1.1 200 OK\r\nConnection: " + value + "\r\nX-Hop: 1\r\nContent-Length: 0\r\n"
		var resp http.Response
		if _, _, err := parseResponse(head, 4, &http.Request{Method: "GET"}, &resp); err != nil {
			t.Fatal(err)
		}
		if _, there := resp.Header["Connection"]; there != kept || resp.Close != (value != "X-Hop") {
			t.Errorf("%q: %v, close %v", value, resp.Header, resp.Close)
		}
	}
}
