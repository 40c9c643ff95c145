package h1

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// frame is how the end of a response is found.
type frame uint8

const (
	frameNone    frame = iota // there is no body
	frameLength               // after so many bytes
	frameChunked              // chunk by chunk
	frameClose                // with the connection's
)

// parseResponse fills in resp from its header section. keep says that the connection may serve another request after it.
func parseResponse(head string, lines int, req *http.Request, resp *http.Response) (f frame, keep bool, err error) {
	line, rest := cutLine(head)
	if err := parseStatus(line, resp); err != nil {
		return 0, false, err
	}
	resp.Request = req
	resp.Header = make(http.Header, lines-1)
	if err := parseFields(rest, resp.Header, make([]string, lines-1)); err != nil {
		return 0, false, err
	}
	return frameOf(req.Method, resp)
}

// cutLine takes the first line, without its end.
func cutLine(s string) (line, rest string) {
	i := strings.IndexByte(s, '\n')
	line, rest = s[:i], s[i+1:]
	if i > 0 && line[i-1] == '\r' {
		line = line[:i-1]
	}
	return line, rest
}

// parseStatus wants HTTP/1.x SP 3DIGIT, and SP with a reason phrase or nothing.
func parseStatus(line string, resp *http.Response) error {
	const n = len("HTTP/1.1 200")
	if len(line) < n || line[:len("HTTP/1.")] != "HTTP/1." || line[8] != ' ' || len(line) > n && line[n] != ' ' {
		return malformed("its status line")
	}
	minor := line[7]
	code := line[9:n]
	if minor < '0' || minor > '9' || code[0] < '1' || code[0] > '9' || code[1] < '0' || code[1] > '9' || code[2] < '0' || code[2] > '9' {
		return malformed("its status line")
	}
	if !only(line[n:], inValue) {
		return malformed("a control character in its status line")
	}
	resp.Proto, resp.Status = line[:8], line[9:]
	resp.ProtoMajor, resp.ProtoMinor = 1, int(minor-'0')
	resp.StatusCode = int(code[0]-'0')*100 + int(code[1]-'0')*10 + int(code[2]-'0')
	return nil
}

// parseFields adds the fields of a section to h. spare has room for as many values as there are lines.
func parseFields(s string, h http.Header, spare []string) error {
	for s != "" {
		var line string
		line, s = cutLine(s)
		colon := strings.IndexByte(line, ':')
		if colon <= 0 {
			return malformed("a header line without a name")
		}
		key := line[:colon]
		upper, canonical := true, true
		for i := 0; i < len(key); i++ {
			c := key[i]
			if class[c]&inToken == 0 {
				return malformed("the name of a header field, or a folded line")
			}
			if upper && 'a' <= c && c <= 'z' || !upper && 'A' <= c && c <= 'Z' {
				canonical = false
			}
			upper = c == '-'
		}
		if !canonical {
			key = textproto.CanonicalMIMEHeaderKey(key)
		}
		value := trim(line[colon+1:])
		if !only(value, inValue) {
			return malformed("a control character in the value of a header field")
		}
		if values, ok := h[key]; ok {
			h[key] = append(values, value)
			continue
		}
		if len(spare) == 0 {
			spare = make([]string, 1)
		}
		spare[0] = value
		h[key], spare = spare[:1:1], spare[1:]
	}
	return nil
}

// frameOf finds the response's framing, sets the fields of resp that tell of it, and takes from the header what net/http takes.
func frameOf(method string, resp *http.Response) (f frame, keep bool, err error) {
	h, code := resp.Header, resp.StatusCode
	old := resp.ProtoMinor == 0
	connection := h["Connection"]
	resp.Close = hasToken(connection, "close")
	switch {
	case old:
		resp.Close = resp.Close || !hasToken(connection, "keep-alive")
	case resp.Close && len(connection) == 1 && strings.EqualFold(trim(connection[0]), "close"):
		delete(h, "Connection") // else it names fields, too, which a proxy has to take away
	}

	coding, chunked := h["Transfer-Encoding"]
	lengths := h["Content-Length"]
	if chunked {
		switch {
		case old:
			return 0, false, malformed("Transfer-Encoding in HTTP/1.0")
		case len(coding) != 1 || !strings.EqualFold(coding[0], "chunked"):
			return 0, false, malformed("a Transfer-Encoding other than chunked")
		case len(lengths) > 0:
			return 0, false, malformed("both Transfer-Encoding and Content-Length")
		}
		delete(h, "Transfer-Encoding")
		resp.TransferEncoding = []string{"chunked"}
		if resp.Trailer, err = announced(h); err != nil {
			return 0, false, err
		}
	}
	length := int64(-1)
	if len(lengths) > 0 {
		for _, l := range lengths[1:] {
			if l != lengths[0] {
				return 0, false, malformed("Content-Length fields that differ")
			}
		}
		if length, err = parseLength(lengths[0]); err != nil {
			return 0, false, err
		}
		if len(lengths) > 1 {
			h["Content-Length"] = lengths[:1:1]
		}
	}

	keep = !resp.Close
	switch {
	case method == http.MethodHead:
		resp.ContentLength = length
		return frameNone, keep && code >= 200, nil
	case code == http.StatusNotModified: // the framing is that of the answer to a GET
		return frameNone, keep, nil
	case code < 200 || code == http.StatusNoContent:
		return frameNone, keep && code >= 200 && !chunked && length <= 0, nil
	case chunked:
		resp.ContentLength = -1
		return frameChunked, keep, nil
	case length < 0:
		resp.ContentLength, resp.Close = -1, true
		return frameClose, false, nil
	}
	resp.ContentLength = length
	if length == 0 {
		return frameNone, keep, nil
	}
	return frameLength, keep, nil
}

// parseLength wants digits and nothing else.
func parseLength(s string) (int64, error) {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, malformed("its Content-Length")
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, malformed("its Content-Length")
	}
	return n, nil
}

// announced takes the Trailer field from the header, and makes of it the trailer with its names.
func announced(h http.Header) (http.Header, error) {
	values, ok := h["Trailer"]
	if !ok {
		return nil, nil
	}
	delete(h, "Trailer")
	var trailer http.Header
	for _, v := range values {
		for v != "" {
			var key string
			key, v, _ = strings.Cut(v, ",")
			if key = trim(key); key == "" {
				continue
			}
			if framing(key) {
				return nil, malformed("a Trailer field that announces fields of framing")
			}
			if trailer == nil {
				trailer = http.Header{}
			}
			trailer[textproto.CanonicalMIMEHeaderKey(key)] = nil
		}
	}
	return trailer, nil
}
