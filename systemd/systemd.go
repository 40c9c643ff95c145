// Package systemd tells systemd how the process is: ready, reloading, stopping, alive.
//
//	n := systemd.FromEnvironment()
//	…
//	n.Ready("listening on " + addr)      // Type=notify or notify-reload
//	n.Watchdog(ctx, alive)               // WatchdogSec=, in a goroutine of its own
//	n.Reloading() … n.Ready("")          // Type=notify-reload
//	n.Stopping("draining")
//
// Where systemd did not start the process, all of it does nothing, without an error. It is sd_notify's protocol: one datagram
// to the socket that NOTIFY_SOCKET names.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Notifier tells systemd. The zero value and nil tell nobody. It is safe for concurrent use.
type Notifier struct {
	address  string
	watchdog time.Duration
}

// FromEnvironment returns the notifier of this process, by NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. It never returns nil.
func FromEnvironment() *Notifier { return fromEnvironment(os.Getenv, os.Getpid()) }

func fromEnvironment(env func(string) string, pid int) *Notifier {
	n := &Notifier{}
	if a := env("NOTIFY_SOCKET"); strings.HasPrefix(a, "/") || strings.HasPrefix(a, "@") && len(a) > 1 {
		n.address = a // net takes "@" for an abstract socket, too
	}
	if p := env("WATCHDOG_PID"); p != "" && p != strconv.Itoa(pid) {
		return n // it is meant for another process, which handed its environment on
	}
	if usec, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 && usec <= int64(time.Duration(1<<63-1)/time.Microsecond) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// Enabled reports whether anyone listens.
func (n *Notifier) Enabled() bool { return n != nil && n.address != "" }

// Ready says that the process is up, or done with a reload; status is shown by systemctl, empty leaves what it was.
func (n *Notifier) Ready(status string) error { return n.Notify("READY=1", statusLine(status)) }

// Reloading says that the configuration is being read again; Ready, or Ready after a failure, must follow.
func (n *Notifier) Reloading() error {
	if !n.Enabled() {
		return nil
	}
	usec, ok := monotonic()
	if !ok { // systemd would not believe it without
		return errors.ErrUnsupported
	}
	return n.Notify("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(usec, 10))
}

// Stopping says that the process is on its way to its end; status is shown by systemctl.
func (n *Notifier) Stopping(status string) error { return n.Notify("STOPPING=1", statusLine(status)) }

// Status is shown by systemctl status.
func (n *Notifier) Status(status string) error { return n.Notify(statusLine(status)) }

// ExtendTimeout asks for so much time from now on for a start, a reload or a stop that takes longer than systemd was told.
func (n *Notifier) ExtendTimeout(d time.Duration) error {
	return n.Notify("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10))
}

func statusLine(status string) string {
	if status == "" {
		return ""
	}
	return "STATUS=" + strings.NewReplacer("\n", " ", "\x00", " ").Replace(status)
}

// WatchdogInterval is how often the process has to show that it is alive, 0 where it need not.
func (n *Notifier) WatchdogInterval() time.Duration {
	if !n.Enabled() {
		return 0
	}
	return n.watchdog
}

// Watchdog shows that the process is alive, at half of WatchdogInterval, as long as alive reports it (nil: always), until ctx
// ends. Where nobody watches it returns at once. A ping that cannot be sent is not the end: systemd decides.
func (n *Notifier) Watchdog(ctx context.Context, alive func() bool) {
	every := n.WatchdogInterval() / 2
	if every <= 0 {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if alive == nil || alive() {
			n.Notify("WATCHDOG=1")
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// sendTimeout bounds a notification: systemd's queue is full only where something is wrong with it.
const sendTimeout = 5 * time.Second

// Notify sends assignments such as "READY=1" in one message; empty ones are left out.
func (n *Notifier) Notify(assignments ...string) error {
	if !n.Enabled() {
		return nil
	}
	var b strings.Builder
	for _, a := range assignments {
		if a != "" {
			b.WriteString(a)
			b.WriteByte('\n')
		}
	}
	if b.Len() == 0 {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("systemd: NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(sendTimeout))
	if _, err := c.Write([]byte(b.String())); err != nil {
		return fmt.Errorf("systemd: NOTIFY_SOCKET: %w", err)
	}
	return nil
}
