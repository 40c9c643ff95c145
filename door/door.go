// Package door decides who may use a port that is not for everyone: with a bearer token, with a client certificate, or, where neither
// is asked for, from this machine only.
//
// A port without a token belongs on the loopback interface ([Loopback]). Whoever has an account on the machine may use it then; web
// pages that the machine's user looks at may not: the Host must be localhost or an address, against names that a page makes point
// here (DNS rebinding), and what browsers say comes from another origin is refused. The latter is refused with a certificate or a
// token, too.
package door

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Causes are all that a [Refusal] can have, in the order of [Ration.Counts].
var Causes = [...]string{"token", "host", "origin"}

// Refusal is why a request is not let in.
type Refusal struct {
	Cause     string // for logs and metrics: one of Causes
	Status    int    // 401 or 403
	Detail    string // for the client to read
	Challenge string // the field WWW-Authenticate of a 401
}

// A Door lets requests in or not. Its methods may be called from several goroutines.
type Door struct {
	token                                           func() string
	origin                                          *http.CrossOriginProtection
	noToken, wrongToken, foreignHost, foreignOrigin Refusal
}

// New returns a door. realm names the port in challenges, setting what to set for a token in words. token returns the bearer token
// that requests must carry, as it is at the moment; while it is empty no token is right. nil: none is needed.
func New(realm, setting string, token func() string) *Door {
	challenge := `Bearer realm="` + realm + `"`
	return &Door{token: token, origin: http.NewCrossOriginProtection(),
		noToken: Refusal{"token", http.StatusUnauthorized,
			"This port wants a token, in a header such as Authorization: Bearer <token>.", challenge},
		wrongToken: Refusal{"token", http.StatusUnauthorized, "The token is not the right one.", challenge + `, error="invalid_token"`},
		foreignHost: Refusal{"host", http.StatusForbidden,
			"Without a token this port answers for localhost and addresses only: ask for http://127.0.0.1 and its port, or set " + setting + ".", ""},
		foreignOrigin: Refusal{"origin", http.StatusForbidden, "The browser says that this comes from the page of another origin.", ""},
	}
}

// Refuses says why a request is not let in; nil: it is. One that is open to all needs no token, but what else there is to check.
func (d *Door) Refuses(r *http.Request, open bool) *Refusal {
	// Certificates, like an open port, are what a browser brings along whatever page asks it to.
	if d.origin.Check(r) != nil {
		return &d.foreignOrigin
	}
	switch {
	case Subject(r) != "":
		return nil
	case d.token == nil:
		if !ownHost(r.Host) {
			return &d.foreignHost
		}
		return nil
	case open:
		return nil
	}
	return d.rightToken(r.Header["Authorization"], d.token())
}

// rightToken compares in a time that does not depend on how much of the token is right.
func (d *Door) rightToken(authorization []string, want string) *Refusal {
	if len(authorization) == 0 {
		return &d.noToken
	}
	scheme, got, _ := strings.Cut(authorization[0], " ")
	if len(authorization) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return &d.noToken
	}
	g, w := sha256.Sum256([]byte(strings.Trim(got, " "))), sha256.Sum256([]byte(want))
	if subtle.ConstantTimeCompare(g[:], w[:]) != 1 || want == "" {
		return &d.wrongToken
	}
	return nil
}

// ownHost reports whether a Host is one that no page of another site can have: DNS cannot make it point here.
func ownHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.EqualFold(host, "localhost") { // no browser leaves it out
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// Loopback reports whether only this machine gets to an address such as 127.0.0.1:9096, as far as that can be seen without a resolver.
func Loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// Subject is that of the verified certificate of a client, or "".
func Subject(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
		return ""
	}
	c := r.TLS.VerifiedChains[0][0]
	if s := c.Subject.String(); s != "" {
		return s
	}
	return "serial " + c.SerialNumber.String()
}

// Ration counts the requests that were not let in, and bounds what is logged of them: a flood of them is not to become one of the
// disk. The zero value is ready for use.
type Ration struct {
	mu     sync.Mutex
	counts [len(Causes)]uint64
	lines  int           // that may be logged yet
	last   time.Duration // when the last of them was added
	missed uint64        // since the last line
	begun  bool
}

const (
	burst = 10 // lines at once
	every = time.Second
)

// Refused counts one at a time of the caller's clock, and reports whether it is to be logged, and how many before it were not.
func (d *Ration) Refused(now time.Duration, cause string) (log bool, missed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range Causes {
		if c == cause {
			d.counts[i]++
		}
	}
	switch n := (now - d.last) / every; {
	case !d.begun:
		d.begun, d.lines, d.last = true, burst, now
	case n > 0:
		d.lines = int(min(burst, time.Duration(d.lines)+n))
		d.last += n * every
	}
	if d.lines == 0 {
		d.missed++
		return false, 0
	}
	d.lines--
	missed, d.missed = d.missed, 0
	return true, missed
}

// Counts are those not let in so far, by cause.
func (d *Ration) Counts() [len(Causes)]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}
