package gateway

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/seed-a29ca62a/cortex/accesslog"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// openAccessLog puts an access log in the place of the one there is.
func (g *Gateway) openAccessLog(c *config.AccessLog) error {
	var l *accesslog.Logger
	if c != nil {
		var err error
		l, err = accesslog.Open(accesslog.Config{Path: c.Path, Sample: c.Sample, Errors: c.Errors, OnError: func(err error) {
			g.logger.Error("access log", "error", err)
		}})
		if err != nil {
			return fmt.Errorf("gateway: access_log: %w", err)
		}
	}
	if before := g.access.Swap(l); before != nil {
		before.Close()
	}
	return nil
}

// checkAccessLog reports that the file of an access log cannot be made. It makes none.
func checkAccessLog(c *config.AccessLog) error {
	if c == nil || c.Path == "-" {
		return nil
	}
	dir := filepath.Dir(c.Path)
	switch info, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("gateway: access_log.path: the directory of the file: %w", err)
	case !info.IsDir():
		return fmt.Errorf("gateway: access_log.path: %s is not a directory", dir)
	}
	if info, err := os.Stat(c.Path); err == nil && info.IsDir() {
		return fmt.Errorf("gateway: access_log.path: %s is a directory: want a file in it", c.Path)
	}
	return nil
}

// ReopenLog opens the file of the access log anew, after it was moved away.
func (g *Gateway) ReopenLog() error {
	l := g.access.Load()
	if l == nil {
		return nil
	}
	if err := l.Reopen(); err != nil {
		return fmt.Errorf("gateway: access_log: %w", err)
	}
	return nil
}

// log writes the line of a call into the access log.
func (x *exchange) log(took time.Duration, gone bool) {
	l := x.gateway.access.Load()
	if l == nil {
		return
	}
	r := x.in
	e := accesslog.Entry{
		Time: time.Now().Add(-took), RequestID: x.id, TraceID: traceID(r.Header),
		Client: r.RemoteAddr, Protocol: r.Proto, Method: r.Method, Host: r.Host, Path: r.URL.Path,
		Route: x.route.path, Target: x.target.Name, Priority: int(x.priority), Attempts: x.report.Attempts,
		CPS: x.target.cps(x.arrived), Reason: x.report.Reason.String(), Fallback: x.fallbackKind, Shadow: x.wouldHave(),
		Status: x.status, BytesIn: x.upload.bytes() + x.received, BytesOut: x.sent, Duration: took,
	}
	e.Unguarded = x.unguarded
	if x.report.Attempts > 0 || x.unguarded {
		e.Upstream = x.upstream
	}
	if x.answer == nil && x.fallbackKind == "" && !x.upgraded && !gone {
		e.BytesOut = problemBytes(x.w.Header(), r)
	}
	if x.member != nil {
		e.Endpoint = x.member.URL().Host
	}
	switch {
	case gone && x.gateway.cutting.Load():
		e.Error, e.Reason = "cut off", "" // its caller did not give up
	case gone:
		e.Error = "client gone"
	case x.lapsed:
		e.Error = "timeout"
	case x.broken:
		e.Error = "answer broke off"
	case x.upload.failed():
		e.Error = "request body"
	case x.report.Rejection != nil:
	case x.report.TimedOut:
		e.Error = "timeout"
	case x.report.ConnectFailed:
		e.Error = "connect"
	case x.answer == nil && x.fallbackKind == "" && !x.upgraded:
		e.Error = "no answer"
	}
	l.Log(&e)
}

// wouldHave is what the guard would have done with a call in shadow mode, empty for nothing.
func (x *exchange) wouldHave() string {
	switch r := &x.report; {
	case r.WouldRefuse != nil:
		return "refuse: " + r.WouldRefuse.Reason.String()
	case r.WouldRetry:
		return "retry"
	case r.WouldCut:
		return "cut"
	}
	return ""
}

// explanation is the decision in numbers.
func (x *exchange) explanation() string {
	return cortexhttp.FormatExplain(cortexhttp.Explanation{Pressure: x.target.Engine.Pressure(), Priority: x.priority, Report: &x.report})
}

// logRefused writes the line of a request that becomes no call.
func (g *Gateway) logRefused(h http.Header, r *http.Request, status int) {
	l := g.access.Load()
	if l == nil {
		return
	}
	l.Log(&accesslog.Entry{Time: time.Now(), RequestID: h.Get(headerRequestID), Client: r.RemoteAddr, Protocol: r.Proto, Method: r.Method, Host: r.Host, Path: r.URL.Path,
		TraceID: traceID(r.Header), Status: status, BytesOut: problemBytes(h, r), Error: "no call"})
}

// problemBytes is the length of the body of a problem that was written under that header.
func problemBytes(h http.Header, r *http.Request) int64 {
	if r.Method == http.MethodHead {
		return 0
	}
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
