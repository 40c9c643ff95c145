package h1

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// watch knows which connections have something to read before anybody has come to read it, and tells their exchanges. It has an epoll
// of its own in which the kernel notes that, edge-triggered: one look is one system call whatever the number of
// connections, and each arrival is seen once. Nobody sleeps on it.
//
// There is one for the process: on one processor all transports wait for the same.
type watch struct {
	pace
	epoll int
	busy  atomic.Bool // somebody looks: ready and list are his
	ready [256]syscall.EpollEvent
	list  []arrival

	mu    sync.Mutex
	conns map[int32]*conn // by file descriptor
}

// An arrival is an exchange whose connection had something to read.
type arrival struct {
	x *exchange
	c *conn
}

const edge = 1 << 31 // EPOLLET, which package syscall has as a negative number

// theWatch is nil where the kernel has no epoll left for it; all is then as without.
var theWatch = sync.OnceValue(func() *watch {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	return &watch{epoll: fd, conns: map[int32]*conn{}}
})

// enter has a connection watched until it is closed.
func (w *watch) enter(c *conn) {
	if w == nil || c.raw == nil {
		return
	}
	c.raw.Control(func(fd uintptr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		e := syscall.EpollEvent{Events: syscall.EPOLLIN | edge, Fd: int32(fd)}
		if syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_ADD, int(fd), &e) == nil {
			c.watch, c.watched = w, int32(fd)
			w.conns[c.watched] = c
		}
	})
}

// leave is called before the connection is closed, or given away.
func (w *watch) leave(c *conn) {
	if w == nil {
		return
	}
	w.mu.Lock()
	if w.conns[c.watched] == c { // the number is another's from the close on
		delete(w.conns, c.watched)
		syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_DEL, int(c.watched), nil)
	}
	w.mu.Unlock()
}

// look tells of arrivals if it is time to.
func (w *watch) look(t time.Time) {
	if w != nil && w.now(t) {
		w.sweep()
	}
}

// sweep tells of arrivals now, unless another does.
func (w *watch) sweep() {
	if w == nil || !w.busy.CompareAndSwap(false, true) {
		return
	}
	defer func() { // also where a listener of the caller's panics
		clear(w.list)
		w.list = w.list[:0]
		w.busy.Store(false)
	}()
	for n := len(w.ready); n == len(w.ready); {
		began := sinceOrigin(time.Now())
		var err error
		if n, err = syscall.EpollWait(w.epoll, w.ready[:], 0); err != nil {
			break
		}
		w.mu.Lock()
		for _, e := range w.ready[:n] {
			// What has taken its connection since may see what was meant for the one before it.
			if c := w.conns[e.Fd]; c != nil {
				if x := c.waiting.Load(); x != nil && x.since.Load() < began {
					w.list = append(w.list, arrival{x, c})
				}
			}
		}
		w.mu.Unlock()
	}
	for _, a := range w.list {
		a.x.found(a.c)
	}
}
