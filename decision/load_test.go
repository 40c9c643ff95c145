//go:build linux

package decision

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"
)

// A load sends requests at a rate and measures how long their answers take. It shares the processors with the service, so it is lean: one
// thread, requests that are written beforehand, answers that are looked at where they lie, no collector. It sleeps in ppoll, to the
// microsecond: Go's timers, where nothing else is to be done, sleep in whole milliseconds and then let several requests go at once.
type load struct {
	rate    float64                       // requests a second, at moments as random as those of many clients that know nothing of each other (Poisson)
	links   []*link                       // in turn; one that is busy is passed over
	request func(n int, id uint32) []byte // the n-th; id is of its stream
}

// What came of a load.
type loaded struct {
	took    []time.Duration // sorted
	late    []time.Duration // how late the load itself was, sorted
	backlog int             // requests that had to wait for a link
	lasted  time.Duration
}

// run sends for so long, after a start that is not measured. A latency counts from when the request was sent; where it had to wait for an
// answer because all links were busy, from when it should have been sent. What the load itself wakes up late is not the service's; it is told
// beside it.
func (l *load) run(t *testing.T, start, long time.Duration) loaded {
	t.Helper()
	total := start + long
	most := int(l.rate * total.Seconds() * 1.2)
	out := loaded{took: make([]time.Duration, 0, most), late: make([]time.Duration, 0, most)}
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	polled := make([]pollFD, len(l.links))
	for i, c := range l.links {
		polled[i] = pollFD{fd: int32(c.fd), events: pollIn}
		c.pending, c.failed = 0, nil
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The kernel may let a thread sleep 50 µs longer than it asks to; not this one. It is of no consequence where it fails.
	syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_TIMERSLACK, 1, 0)
	defer syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_TIMERSLACK, 0, 0)

	began := time.Now()
	next, waiting, turn, pending, n := time.Duration(0), false, 0, 0, 0
	for {
		now := time.Since(began)
		for ; next <= now && next < total; now = time.Since(began) {
			c := l.free(&turn)
			if c == nil {
				waiting = true
				break
			}
			from := now
			switch {
			case waiting:
				from, waiting = next, false
				out.backlog++
			case next >= start:
				out.late = append(out.late, now-next)
			}
			if err := c.send(l.request(n, c.id), from); err != nil {
				t.Fatal(err)
			}
			n++
			pending++
			next += time.Duration(random.ExpFloat64() / l.rate * float64(time.Second))
		}
		if next >= total && pending == 0 {
			break
		}
		wait := max(next-now, 0)
		if waiting || next >= total {
			wait = time.Second
		}
		if now > total+5*time.Second {
			t.Fatalf("%d requests without an answer", pending)
		}
		if !poll(polled, wait) {
			continue
		}
		for i := range polled {
			if polled[i].revents == 0 {
				continue
			}
			c := l.links[i]
			c.receive(func(from time.Duration) {
				pending--
				if from >= start {
					out.took = append(out.took, time.Since(began)-from)
				}
			})
			if c.failed != nil {
				t.Fatal(c.failed)
			}
		}
	}
	out.lasted = time.Since(began) - start
	slices.Sort(out.took)
	slices.Sort(out.late)
	return out
}

// free is the next link that takes a request.
func (l *load) free(turn *int) *link {
	for range l.links {
		c := l.links[*turn]
		*turn = (*turn + 1) % len(l.links)
		if c.pending < c.most {
			return c
		}
	}
	return nil
}

const pollIn = 1

type pollFD struct {
	fd              int32
	events, revents int16
}

// poll waits so long for something to read.
func poll(fds []pollFD, wait time.Duration) bool {
	ts := syscall.NsecToTimespec(int64(wait))
	n, _, _ := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return int(n) > 0 // else the time is over, or a signal came
}

// A link is one connection of a load.
type link struct {
	fd      int
	most    int // requests at a time
	pending int
	id      uint32              // of the next stream, HTTP/2 only
	from    [1024]time.Duration // by stream, modulo their number
	data    [1024]bool          // a message came
	in      []byte              // what was read, up to n
	n       int
	answer  func(c *link, b []byte, done func(from time.Duration)) (used int) // takes whole answers off the front of what was read
	failed  error
}

func newLink(t *testing.T, address string, most int, answer func(*link, []byte, func(time.Duration)) int) *link {
	t.Helper()
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		t.Fatal(err)
	}
	return &link{fd: fd, most: most, in: make([]byte, 256<<10), answer: answer}
}

func (c *link) send(request []byte, from time.Duration) error {
	c.from[c.id/2%uint32(len(c.from))] = from
	c.data[c.id/2%uint32(len(c.data))] = false
	c.pending++
	c.id += 2
	return c.write(request)
}

func (c *link) write(b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(c.fd, b)
		if err != nil && err != syscall.EINTR {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// receive reads what there is.
func (c *link) receive(done func(from time.Duration)) {
	n, err := syscall.Read(c.fd, c.in[c.n:])
	if err == syscall.EINTR {
		return
	}
	if err != nil || n == 0 {
		c.failed = fmt.Errorf("read: %d bytes, %v", n, err)
		return
	}
	c.n += n
	if used := c.answer(c, c.in[:c.n], func(from time.Duration) { c.pending--; done(from) }); used > 0 {
		c.n = copy(c.in, c.in[used:c.n])
	}
	if c.n == len(c.in) {
		c.failed = errors.New("an answer is too long")
	}
}

// http1 is the answer of HTTP/1.1: 200, with a Content-Length.
func http1(c *link, b []byte, done func(time.Duration)) int {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return 0
	}
	head, rest := b[:end+2], b[end+4:]
	const field = "\r\nContent-Length: "
	at := bytes.Index(head, []byte(field))
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) || at < 0 {
		c.failed = fmt.Errorf("%s", b)
		return 0
	}
	digits, _, _ := bytes.Cut(head[at+len(field):], []byte("\r\n"))
	length, err := strconv.Atoi(string(digits))
	if err != nil {
		c.failed = err
		return 0
	}
	if len(rest) < length {
		return 0
	}
	done(c.from[(c.id-2)/2%uint32(len(c.from))])
	return end + 4 + length
}

// postHTTP1 is a request of HTTP/1.1.
func postHTTP1(path, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// Frames of HTTP/2.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway = 0, 1, 3, 4, 6, 7
	endStream, acknowledged, endHeaders                                        = 1, 1, 4
)

func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// newGRPCLink is one connection of gRPC with many streams at a time.
func newGRPCLink(t *testing.T, address string) *link {
	c := newLink(t, address, 200, grpcAnswer)
	c.id = 1
	b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	b = appendFrame(b, frameSettings, 0, 0, nil)
	b = appendFrame(b, 8, 0, 0, binary.BigEndian.AppendUint32(nil, 1<<30)) // the window of the connection: as much as will ever come
	if err := c.write(b); err != nil {
		t.Fatal(err)
	}
	return c
}

// postGRPC is a request of gRPC, for any stream: see setStream.
func postGRPC(t *testing.T, path string, m proto.Message) []byte {
	t.Helper()
	message, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text := func(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }
	head := []byte{0x83, 0x86}         // POST, http
	head = text(append(head, 4), path) // names out of the static table; nothing goes into the dynamic one
	head = text(append(head, 1), "127.0.0.1")
	head = text(append(head, 0x0f, 31-15), "application/grpc")
	head = text(text(append(head, 0), "te"), "trailers")
	b := appendFrame(nil, frameHeaders, endHeaders, 0, head)
	data := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return appendFrame(b, frameData, endStream, 0, append(data, message...))
}

// setStream sets the stream of a request of postGRPC's.
func setStream(b []byte, id uint32) []byte {
	binary.BigEndian.PutUint32(b[5:], id)
	binary.BigEndian.PutUint32(b[9+int(b[1])<<8+int(b[2])+5:], id)
	return b
}

// grpcAnswer takes frames. An answer without a message is one with an error.
func grpcAnswer(c *link, b []byte, done func(time.Duration)) (used int) {
	for {
		f := b[used:]
		if len(f) < 9 {
			return used
		}
		length := int(f[0])<<16 + int(f[1])<<8 + int(f[2])
		if len(f) < 9+length {
			return used
		}
		kind, flags, stream, payload := f[3], f[4], binary.BigEndian.Uint32(f[5:])&(1<<31-1), f[9:9+length]
		used += 9 + length
		at := stream / 2 % uint32(len(c.from))
		switch kind {
		case frameData:
			c.data[at] = c.data[at] || length > 5
		case frameHeaders:
			if flags&endStream == 0 {
				continue
			}
			if !c.data[at] {
				c.failed = fmt.Errorf("stream %d: no message: %q", stream, payload)
				return used
			}
			done(c.from[at])
		case frameSettings, framePing:
			if flags&acknowledged != 0 {
				continue
			}
			if kind == frameSettings {
				payload = nil
			}
			if err := c.write(appendFrame(nil, kind, acknowledged, 0, payload)); err != nil {
				c.failed = err
			}
		case frameReset, frameGoAway:
			c.failed = fmt.Errorf("frame %d of stream %d: %q", kind, stream, payload)
			return used
		}
	}
}
