//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package h1

import "syscall"

// prepareProbe makes what stale needs, once for the connection. Connections that are no sockets are not looked into.
func (c *conn) prepareProbe() {
	s, ok := c.nc.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	var b [1]byte
	c.raw = raw
	c.probe = func(fd uintptr) bool {
		for {
			_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			if err == syscall.EINTR {
				continue
			}
			// Nothing is to be there: neither the end, nor bytes that nobody asked for.
			c.dead = err != syscall.EAGAIN && err != syscall.EWOULDBLOCK
			return true
		}
	}
}

// stale reports whether the idle connection cannot be used again: its server has closed it, or sent what is no answer to
// anything. It does not block.
func (c *conn) stale() bool {
	return c.raw != nil && (c.raw.Read(c.probe) != nil || c.dead)
}
