//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package h1

func (c *conn) prepareProbe() {}

func (c *conn) stale() bool { return false }
