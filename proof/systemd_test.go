package proof

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// systemd hears READY=1 once requests are answered, and STOPPING=1 when the drain begins, before the process ends by itself.
func TestSystemdIsNotified(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	heard := make(chan string, 100)
	go func() {
		defer close(heard)
		b := make([]byte, 4096)
		for {
			n, err := socket.Read(b)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(b[:n])) {
				heard <- strings.TrimSpace(line)
			}
		}
	}()
	hears := func(want string) (ok bool) {
		t.Helper()
		for deadline := time.After(5 * time.Second); ; {
			select {
			case line := <-heard:
				t.Log(line)
				if line == want {
					return true
				}
			case <-deadline:
				return false
			}
		}
	}
	answering, release := make(chan struct{}), make(chan struct{})
	up := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			close(answering)
			<-release
		}
		io.WriteString(w, "hello")
	}))
	g := serve(t, fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
targets: {up: {endpoints: [http://%s], timeout: {enabled: false}}}
`, up), "NOTIFY_SOCKET="+path)
	if !hears("READY=1") {
		t.Fatal("no READY=1 at NOTIFY_SOCKET")
	}
	if r, err := http.Get("http://" + g.addr + "/"); err != nil || r.StatusCode != 200 {
		t.Errorf("ready, but: %v %v", r, err)
	}
	long := make(chan error, 1)
	go func() {
		r, err := http.Get("http://" + g.addr + "/long")
		if err == nil && r.StatusCode != 200 {
			err = errors.New(r.Status)
		}
		long <- err
	}()
	<-answering
	g.cmd.Process.Signal(os.Interrupt)
	if !hears("STOPPING=1") {
		t.Error("no STOPPING=1")
	}
	if !g.alive() {
		t.Error("ended before the request in flight did")
	}
	close(release)
	if err := <-long; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if code := g.exit(10 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
