package h1

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	for _, limit := range []int64{-1, 1<<30 + 1} {
		if _, err := New(Config{ResponseHeaderLimit: limit}); err == nil || !strings.Contains(err.Error(), "Config.ResponseHeaderLimit") {
			t.Errorf("%d: %v", limit, err)
		}
	}
	tr := newTransport(t, Config{})
	want := Config{DialTimeout: DefaultDialTimeout, MaxIdlePerHost: DefaultMaxIdlePerHost, IdleTimeout: DefaultIdleTimeout, MaxAge: DefaultMaxAge,
		ExpectContinueTimeout: DefaultExpectContinueTimeout, ResponseHeaderLimit: DefaultResponseHeaderLimit}
	if have := tr.cfg; have.Dial != nil || have.DialTimeout != want.DialTimeout || have.MaxIdlePerHost != want.MaxIdlePerHost ||
		have.IdleTimeout != want.IdleTimeout || have.MaxAge != want.MaxAge || have.ExpectContinueTimeout != want.ExpectContinueTimeout ||
		have.ResponseHeaderLimit != want.ResponseHeaderLimit {
		t.Errorf("%+v", have)
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{&Error{Op: OpRequest, Err: invalid("no URL")}, "h1: request: invalid request: no URL"},
		{&Error{Op: OpDial, Addr: "a:80", Err: io.EOF}, "h1: no connection to a:80: EOF"},
		{&Error{Op: OpRead, Addr: "a:80", Err: io.EOF, Reused: true, stale: true}, "h1: the kept-alive connection to a:80 was dead: EOF"},
		{&Error{Op: OpResponse, Addr: "a:80", Err: malformed("its status line")}, "h1: response (a:80): malformed response: its status line"},
	} {
		if s := c.err.Error(); s != c.want {
			t.Errorf("%q, want %q", s, c.want)
		}
		if _, ok := errors.AsType[net.Error](error(c.err)); !ok || c.err.Timeout() || c.err.Temporary() {
			t.Errorf("%v as a net.Error", c.err)
		}
	}
}

func TestAddress(t *testing.T) {
	for host, want := range map[string]string{
		"a": "a:80", "a:": "a:80", "a:81": "a:81", "[::1]": "[::1]:80", "[::1]:": "[::1]:80", "[::1]:81": "[::1]:81", "[fe80::1%eth0]": "[fe80::1%eth0]:80",
	} {
		if got := address(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	for host, want := range map[string]string{"a%b": "a%b", "[::1]": "[::1]", "[fe80::1%25eth0]:80": "[fe80::1]:80", "[": "["} {
		if got := withoutZone(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}

// A connection that had to read a large header does not keep the memory.
func TestLargeHeader(t *testing.T) {
	addr := serve(t, answering("HTTP/1.1 200 OK\r\nA: "+strings.Repeat("x", 500_000)+"\r\nContent-Length: 2\r\n\r\nok"))
	tr := newTransport(t, Config{})
	for range 2 {
		resp, _ := fetch(t, tr, newRequest(t, "GET", addr, nil))
		if len(resp.Header.Get("A")) != 500_000 {
			t.Fatal("cut")
		}
		if c := tr.pool.hosts[addr][0]; len(c.buf) > idleBuffer {
			t.Fatalf("%d bytes kept", len(c.buf))
		}
	}
}
