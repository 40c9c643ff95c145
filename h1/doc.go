// Package h1 is an HTTP/1.1 client transport that works in its caller's goroutine.
//
// It takes and gives net/http's types and does for plain http:// what [net/http.Transport] does, for a proxy: nothing is added to
// a request or taken from a response that its framing does not ask for (no User-Agent, no Accept-Encoding, no gzip, no
// Cache-Control from Pragma), and it knows for certain whether a byte of a request was sent ([Error.RequestUnsent]).
//
// # Goroutines
//
// A request without a body, or with one of a known length of up to 16 KiB, is written, and its response read, by the
// goroutine that calls RoundTrip. Such a body is read whole before anything is sent: a server never waits for a slow client,
// and the length that was announced is known to be true. The price is that a server cannot answer before that body is
// there. Every other body (longer, of unknown length, or with Expect: 100-continue) is sent by one goroutine of its own while the
// response is awaited. A panic in the Read of such a body ends the process, as with net/http's transport; one of the caller's
// own goroutine passes through RoundTrip and closes the connection.
//
// No goroutine and no timer stands behind a connection, idle or in use. A context that ends closes the connection.
//
// # Early answers
//
// A response that arrives while the body is still being sent is returned at once. The rest of the body is sent until the
// response's own body was read to its end or closed. If it is not sent 50 ms after that, or the server said that it
// closes, the connection is closed. The goroutine ends with the Read of the request's body that is under way then,
// and closes it. An error is returned by RoundTrip only when that goroutine has ended, as by net/http's.
//
// # Differences from net/http's transport
//
//   - Responses are refused that leave doubt where they end, or are malformed: both Transfer-Encoding and Content-Length,
//     Transfer-Encoding in HTTP/1.0, folded header lines, white space in a field name or before its colon, control characters,
//     versions other than HTTP/1.x, 101 where no upgrade was asked for. Lines that end in LF alone are accepted in the header.
//   - Requests are refused with a white space in their target, an invalid or non-ASCII host, a transfer coding other than chunked,
//     or the method CONNECT. Header fields that frame the body are left out whatever the case of their names.
//   - The last piece of a body of known length is sent only when the body's end was read. One that is shorter or
//     longer than announced is never whole on the wire.
//   - A body of unknown length is sent in chunks, whatever the method; it is not looked into first.
//   - Where a server answers an Expect: 100-continue with a final status, the body is not sent, and the connection is closed.
//   - Of the hooks of [net/http/httptrace.ClientTrace], GetConn, GotConn, GotFirstResponseByte, Wait100Continue, Got100Continue,
//     Got1xxResponse, WroteHeaders and WroteRequest are called, and those of [net.Dialer]. WroteHeaders is called when the
//     header, or a part of it, was handed to the kernel.
//   - Request.Cancel is not minded. Use contexts.
//   - A dial is made for the request that needs it, under its context, and ends with it.
package h1
