package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// manager is systemd's end.
func manager(t *testing.T, address string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func receive(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func environment(kv ...string) func(string) string {
	return func(key string) string {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == key {
				return kv[i+1]
			}
		}
		return ""
	}
}

func TestTellsSystemd(t *testing.T) {
	dir, err := os.MkdirTemp("", "sd") // short: a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	addresses := []string{filepath.Join(dir, "notify")}
	if runtime.GOOS == "linux" {
		addresses = append(addresses, fmt.Sprintf("@cortex-systemd-test-%d", os.Getpid()))
	}
	for _, address := range addresses {
		t.Run(address[:1], func(t *testing.T) {
			m := manager(t, address)
			n := fromEnvironment(environment("NOTIFY_SOCKET", address), 1)
			for _, c := range []struct {
				send func() error
				want string
			}{
				{func() error { return n.Ready("") }, "READY=1\n"},
				{func() error { return n.Ready("listening\non :80") }, "READY=1\nSTATUS=listening on :80\n"},
				{func() error { return n.Stopping("draining") }, "STOPPING=1\nSTATUS=draining\n"},
				{func() error { return n.Status("3 targets") }, "STATUS=3 targets\n"},
				{func() error { return n.ExtendTimeout(90 * time.Second) }, "EXTEND_TIMEOUT_USEC=90000000\n"},
			} {
				if err := c.send(); err != nil {
					t.Fatal(err)
				}
				if got := receive(t, m); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			}
			if err := n.Status(""); err != nil { // nothing is sent
				t.Error(err)
			}
			var last int64
			for range 2 {
				if err := n.Reloading(); err != nil {
					if runtime.GOOS != "linux" && errors.Is(err, errors.ErrUnsupported) {
						return
					}
					t.Fatal(err)
				}
				var usec int64
				if _, err := fmt.Sscanf(receive(t, m), "RELOADING=1\nMONOTONIC_USEC=%d\n", &usec); err != nil || usec <= last {
					t.Errorf("%d after %d: %v", usec, last, err)
				}
				last = usec
			}
		})
	}
}

// The clock is the one of the system, not of the process: systemd compares it with its own.
func TestReloadingHasTheClockOfTheSystem(t *testing.T) {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Skip(err)
	}
	up, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	usec, ok := monotonic()
	if got := float64(usec) / 1e6; !ok || got > up+60 || got < 1 { // the one of /proc goes on in a suspended machine
		t.Errorf("%v s, the system is up for %v s", got, up)
	}
}

func TestWatchdog(t *testing.T) {
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	address := filepath.Join(dir, "notify")
	m := manager(t, address)
	n := fromEnvironment(environment("NOTIFY_SOCKET", address, "WATCHDOG_USEC", "20000", "WATCHDOG_PID", "7"), 7)
	if d := n.WatchdogInterval(); d != 20*time.Millisecond {
		t.Fatal(d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	asked, done := make(chan bool, 1000), make(chan struct{})
	go func() {
		defer close(done)
		calls := 0
		n.Watchdog(ctx, func() bool {
			calls++
			asked <- true
			return calls != 2 // not alive the second time: that ping is left out
		})
	}()
	for range 2 {
		if got := receive(t, m); got != "WATCHDOG=1\n" {
			t.Errorf("%q", got)
		}
	}
	if len(asked) < 3 {
		t.Errorf("two pings after %d questions: the second was not alive", len(asked))
	}
	cancel()
	<-done
}

func TestNobodyToTell(t *testing.T) {
	var none *Notifier
	for _, n := range []*Notifier{none, {}, fromEnvironment(environment("WATCHDOG_USEC", "1000"), 1),
		fromEnvironment(environment("NOTIFY_SOCKET", "relative"), 1), fromEnvironment(environment("NOTIFY_SOCKET", "@"), 1)} {
		if n.Enabled() || n.WatchdogInterval() != 0 {
			t.Errorf("%+v is enabled", n)
		}
		if err := errors.Join(n.Ready("x"), n.Reloading(), n.Stopping(""), n.Status("x"), n.Notify("A=1")); err != nil {
			t.Error(err)
		}
		n.Watchdog(context.Background(), nil) // returns
	}
	for _, usec := range []string{"", "0", "-5", "x", "99999999999999999999", "9223372036854775807"} {
		n := fromEnvironment(environment("NOTIFY_SOCKET", "/nowhere", "WATCHDOG_USEC", usec), 1)
		if d := n.WatchdogInterval(); d != 0 {
			t.Errorf("WATCHDOG_USEC=%s: %v", usec, d)
		}
	}
	if n := fromEnvironment(environment("NOTIFY_SOCKET", "/nowhere", "WATCHDOG_USEC", "5", "WATCHDOG_PID", "2"), 1); n.WatchdogInterval() != 0 {
		t.Error("the watchdog of another process")
	}
	if err := fromEnvironment(environment("NOTIFY_SOCKET", "/nowhere/at/all"), 1).Ready(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that there is no such socket", err)
	}
}
