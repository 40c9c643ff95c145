package gateway

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
)

// A protocol that is asked for with POST, as by clients of Docker, got a 101 with a Content-Length, which none has (RFC 9110, 8.6).
func TestUpgradeByPostHasNoLength(t *testing.T) {
	var ended atomic.Int64
	s := realGateway(t, target(realUpstream(t, nil, "http", talker(&ended)), ""))
	c, br := rawConn(t, nil, "http/1.1", s)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\nbye\n")
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := res.Header["Content-Length"]; res.StatusCode != http.StatusSwitchingProtocols || there {
		t.Errorf("%s %v", res.Status, res.Header)
	}
}
