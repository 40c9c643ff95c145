package proof

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An h2conn is a client's side of HTTP/2 that sends whatever frames it is told to.
type h2conn struct {
	net.Conn
	out    *bufio.Writer // which only floods fill before they flush it
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	fields []hpack.HeaderField // of the answer that is being read
	decode *hpack.Decoder
}

// dialH2 connects without TLS and says the preface.
func dialH2(t *testing.T, address string) *h2conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return newH2(t, c)
}

func newH2(t *testing.T, c net.Conn) *h2conn {
	t.Cleanup(func() { c.Close() })
	h := &h2conn{Conn: c, out: bufio.NewWriterSize(c, 16<<10)}
	h.framer = http2.NewFramer(h.out, c)
	h.framer.AllowIllegalWrites = true
	h.hpack = hpack.NewEncoder(&h.block)
	h.decode = hpack.NewDecoder(4096, func(f hpack.HeaderField) { h.fields = append(h.fields, f) })
	h.out.WriteString(http2.ClientPreface)
	h.framer.WriteSettings()
	h.out.Flush()
	return h
}

// encode makes a header block of names and values in turn.
func (h *h2conn) encode(fields ...string) []byte {
	h.block.Reset()
	for i := 0; i+1 < len(fields); i += 2 {
		h.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(h.block.Bytes())
}

// request opens a stream with a header and, if there is any, a body. It is on its way once out is flushed.
func (h *h2conn) request(stream uint32, body []byte, fields ...string) error {
	err := h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.encode(fields...), EndHeaders: true, EndStream: body == nil})
	if err == nil && body != nil {
		err = h.framer.WriteData(stream, true, body)
	}
	return err
}

// answer reads until a stream has its status or was reset; a connection that ends is an error. What comes for others is skipped.
func (h *h2conn) answer(stream uint32) (status int, fields []hpack.HeaderField, err error) {
	h.SetReadDeadline(time.Now().Add(5 * time.Second))
	h.out.Flush()
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			return 0, nil, err
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			h.fields = nil
			if _, err := h.decode.Write(f.HeaderBlockFragment()); err != nil {
				return 0, nil, err
			}
			if f.StreamID == stream {
				for _, x := range h.fields {
					if x.Name == ":status" {
						status, _ = strconv.Atoi(x.Value)
					}
				}
				return status, h.fields, nil
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return 0, nil, fmt.Errorf("%w: %v", errReset, f.ErrCode)
			}
		case *http2.GoAwayFrame:
			if f.LastStreamID < stream {
				return 0, nil, fmt.Errorf("GOAWAY: %v %s", f.ErrCode, f.DebugData())
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				h.framer.WriteSettingsAck()
				h.out.Flush()
			}
		}
	}
}

var errReset = errors.New("stream reset")
