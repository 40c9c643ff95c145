package cortexhttp

import (
	"errors"
	"net/http"
	"strings"

	"github.com/seed-a29ca62a/cortex"
)

// RequestFault reports whether the error of a call says that the base transport could not send the request as it is, and the status that
// whoever made the request should get: 431 where its header or trailer is larger than the target's HTTP/2 takes, else 400. Nothing of
// that speaks against the target, and sending the same again does not help.
func RequestFault(err error) (status int, ok bool) {
	if e, is := errors.AsType[interface {
		error
		RequestInvalid() bool
	}](err); is && e.RequestInvalid() {
		return http.StatusBadRequest, true
	}
	if e, is := errors.AsType[*cortex.CallError](err); is {
		err = e.Err
	}
	for ; err != nil; err = errors.Unwrap(err) {
		s := strings.TrimPrefix(err.Error(), "http2: ")
		if s == tooLarge {
			return http.StatusRequestHeaderFieldsTooLarge, true
		}
		for _, prefix := range unsendable {
			if strings.HasPrefix(s, prefix) {
				return http.StatusBadRequest, true
			}
		}
	}
	return 0, false
}

// net/http has no types for what it says of a request that it does not send. What a peer says stands behind words of net/http's own.
const tooLarge = "request header list larger than peer's advertised limit"

var unsendable = [...]string{
	// before there is a connection
	"net/http: invalid header ", "net/http: invalid trailer ", "net/http: invalid method ", "http: no Host in request URL",
	// HTTP/1
	"http: invalid Host header", "net/http: can't write control character in Request.URL", "invalid Trailer key ", "http: ContentLength=",
	// HTTP/2
	"invalid Host header", "invalid request :path ", "invalid HTTP header ", "invalid HTTP trailer ", "invalid Upgrade request header: ",
	"invalid Connection request header: ", "invalid Transfer-Encoding request header: ", "request body larger than specified content length",
}
