//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

const (
	maxBody = 1 << 20 // of an answer, bytes
	maxHead = 8 << 10 // of a request, bytes
)

// serveUpstream answers GET /N with N bytes, at once and as cheaply as can be: it shares its processor with the load, and
// what the two of them cannot do no proxy can show. So it is one thread around epoll, without goroutines and without
// net/http, and it understands what the proxies send, no more.
func serveUpstream(args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	address := flags.String("listen", "127.0.0.1:0", "host:port, IPv4")
	if err := flags.Parse(args[1:]); err != nil {
		return flag.ErrHelp
	}
	l, err := net.Listen("tcp4", *address)
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File() // its own descriptor, which the runtime's poller knows nothing of
	if err != nil {
		return err
	}
	defer f.Close()
	if err := l.Close(); err != nil {
		return err
	}
	u := &upstream{listener: int(f.Fd()), conns: map[int]*upstreamConn{}, answers: map[int][]byte{}}
	if err := syscall.SetNonblock(u.listener, true); err != nil {
		return os.NewSyscallError("setnonblock", err)
	}
	// Segments as on Ethernet. In those of the loopback interface, 64 KiB, one answer can fill a receiver's window to where not
	// another segment fits, and the sender then waits for a timer: up to 200 ms in which nobody does anything.
	const segment = 1448
	if err := syscall.SetsockoptInt(u.listener, syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, segment); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return u.run()
}

type upstream struct {
	epoll, listener int
	conns           map[int]*upstreamConn // by descriptor
	answers         map[int][]byte        // by size of the body, whole
}

func (u *upstream) run() (err error) {
	if u.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := u.watch(u.listener, syscall.EPOLL_CTL_ADD, syscall.EPOLLIN); err != nil {
		return err
	}
	events := make([]syscall.EpollEvent, 256)
	in := make([]byte, 64<<10)
	for {
		n, err := syscall.EpollWait(u.epoll, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:max(n, 0)] {
			fd := int(e.Fd)
			if fd == u.listener {
				if err := u.accept(); err != nil {
					return err
				}
				continue
			}
			if c := u.conns[fd]; c != nil && u.serve(fd, c, in) != nil {
				delete(u.conns, fd)
				syscall.Close(fd)
			}
		}
	}
}

func (u *upstream) watch(fd, operation int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(u.epoll, operation, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)}))
}

func (u *upstream) accept() error {
	for {
		fd, _, err := syscall.Accept4(u.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return nil
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED):
			continue
		case err != nil:
			return os.NewSyscallError("accept", err)
		}
		if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		u.conns[fd] = new(upstreamConn)
		if err := u.watch(fd, syscall.EPOLL_CTL_ADD, syscall.EPOLLIN); err != nil {
			return err
		}
	}
}

type upstreamConn struct {
	head    []byte // of a request, as far as it has come
	body    int    // bytes of it still to come
	answer  []byte // to be sent when the body is there
	out     []byte // what the socket had no room for yet
	waiting bool   // for that room
}

// serve goes on where a connection stands. An error ends it.
func (u *upstream) serve(fd int, c *upstreamConn, in []byte) error {
	if len(c.out) > 0 {
		if err := u.send(fd, c); err != nil || len(c.out) > 0 {
			return err
		}
	}
	n, err := syscall.Read(fd, in)
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return nil
	case err != nil:
		return err
	case n == 0:
		return net.ErrClosed
	}
	if err := u.take(c, in[:n]); err != nil {
		return err
	}
	return u.send(fd, c)
}

// take reads requests, and puts out their answers.
func (u *upstream) take(c *upstreamConn, in []byte) (err error) {
	for len(in) > 0 {
		if c.answer == nil {
			before := len(c.head)
			c.head = append(c.head, in...)
			end := bytes.Index(c.head, []byte("\r\n\r\n"))
			if end < 0 {
				if len(c.head) > maxHead {
					return errors.New("a request without an end")
				}
				return nil
			}
			in = in[end+len("\r\n\r\n")-before:]
			if c.answer, c.body, err = u.request(c.head[:end+len("\r\n")]); err != nil {
				fmt.Fprintln(os.Stderr, "upstream:", err)
				return err
			}
			c.head = c.head[:0]
		}
		n := min(c.body, len(in))
		c.body -= n
		in = in[n:]
		if c.body == 0 {
			if c.out == nil {
				c.out = c.answer // as it is: it is only read
			} else {
				c.out = append(c.out[:len(c.out):len(c.out)], c.answer...)
			}
			c.answer = nil
		}
	}
	return nil
}

// request reads a head, each of its lines with its end.
func (u *upstream) request(head []byte) (answer []byte, body int, err error) {
	first, fields, _ := bytes.Cut(head, []byte("\r\n"))
	_, target, _ := bytes.Cut(first, []byte(" "))
	target, _, _ = bytes.Cut(target, []byte(" "))
	size, err := strconv.Atoi(string(bytes.TrimPrefix(target, []byte("/"))))
	if err != nil || size < 0 || size > maxBody {
		return nil, 0, fmt.Errorf("%q: the path must be a number of bytes", first)
	}
	for len(fields) > 0 {
		var line []byte
		line, fields, _ = bytes.Cut(fields, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if body, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || body < 0 {
				return nil, 0, fmt.Errorf("content length %q", value)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			return nil, 0, fmt.Errorf("transfer encoding %q is not understood", value)
		}
	}
	if answer = u.answers[size]; answer == nil {
		answer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s",
			size, bytes.Repeat([]byte{'x'}, size))
		u.answers[size] = answer
	}
	return answer, body, nil
}

// send writes what there is room for, and has epoll say when there is more.
func (u *upstream) send(fd int, c *upstreamConn) error {
	for len(c.out) > 0 {
		n, err := syscall.Write(fd, c.out)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			return err
		}
		c.out = c.out[n:]
	}
	if len(c.out) == 0 {
		c.out = nil
	}
	if waiting := len(c.out) > 0; waiting != c.waiting {
		c.waiting = waiting
		events := uint32(syscall.EPOLLIN)
		if waiting {
			events = syscall.EPOLLOUT // nothing is read meanwhile
		}
		return u.watch(fd, syscall.EPOLL_CTL_MOD, events)
	}
	return nil
}
