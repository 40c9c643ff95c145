package front

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A frame of HTTP/2, as little of it as these tests need.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway, frameWindow, frameContinuation = 0, 1, 3, 4, 6, 7, 8, 9

	flagEndStream, flagAck, flagEndHeaders = 1, 1, 4
)

func frame(kind, flags byte, stream uint32, payload string) string {
	h := make([]byte, 9)
	h[0], h[1], h[2], h[3], h[4] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags
	binary.BigEndian.PutUint32(h[5:], stream)
	return string(h) + payload
}

func setting(id uint16, v uint32) string {
	b := binary.BigEndian.AppendUint16(nil, id)
	return string(binary.BigEndian.AppendUint32(b, v))
}

func u32(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }

// get is the header block of a GET: indexed fields, and literal ones that are not indexed.
func get(path string) string {
	return "\x82\x86" + literal(":path", path) + literal(":authority", "a")
}

func literal(name, value string) string {
	return "\x00" + string([]byte{byte(len(name))}) + name + string([]byte{byte(len(value))}) + value
}

func request(stream uint32, path string) string {
	return frame(frameHeaders, flagEndHeaders|flagEndStream, stream, get(path))
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

type gotFrame struct {
	kind, flags byte
	stream      uint32
	payload     string
}

// h2 dials and reads all frames, answering settings and, if it is told to, pings. The channel is closed with the connection.
func (w *world) h2(settings string, pong bool) (*client, chan gotFrame) {
	k := w.dial("192.0.2.1:1")
	frames := make(chan gotFrame, 100_000)
	out := make(chan string, 100)
	go func() {
		for s := range out {
			io.WriteString(k, s)
		}
	}()
	go func() {
		defer close(frames)
		defer close(out)
		for {
			h := make([]byte, 9)
			if _, err := io.ReadFull(k.r, h); err != nil {
				return
			}
			b := make([]byte, int(h[0])<<16|int(h[1])<<8|int(h[2]))
			if _, err := io.ReadFull(k.r, b); err != nil {
				return
			}
			f := gotFrame{h[3], h[4], binary.BigEndian.Uint32(h[5:]), string(b)}
			if pong && f.kind == framePing && f.flags&flagAck == 0 {
				out <- frame(framePing, flagAck, 0, f.payload)
			}
			if f.kind == frameSettings && f.flags&flagAck == 0 {
				out <- frame(frameSettings, flagAck, 0, "")
			}
			frames <- f
		}
	}()
	k.say(preface + frame(frameSettings, 0, 0, settings))
	return k, frames
}

// drain returns what came until now.
func drain(frames chan gotFrame) (all []gotFrame, open bool) {
	synctest.Wait()
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return all, false
			}
			all = append(all, f)
		default:
			return all, true
		}
	}
}

func has(fs []gotFrame, kind byte, stream uint32) bool {
	for _, f := range fs {
		if f.kind == kind && f.stream == stream {
			return true
		}
	}
	return false
}

// A stream whose window stays shut is reset, the connection and its other streams go on.
func TestShutWindows(t *testing.T) {
	const patience = 8 * time.Second
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/big":
			if _, err := io.WriteString(w, strings.Repeat("x", 100<<10)); err == nil {
				panic("written into a shut window")
			}
		case "/flush":
			io.WriteString(w, "x")
			if err := http.NewResponseController(w).Flush(); err == nil {
				panic("flushed into a shut window")
			}
		case "/quiet":
			w.WriteHeader(200)
			http.NewResponseController(w).Flush()
			time.Sleep(time.Hour)
		default:
			io.WriteString(w, "small")
		}
	}
	inWorld(t, Limits{H2C: true, WriteTimeout: patience, IdleTimeout: 10 * time.Hour}, handler, func(w *world) {
		k, frames := w.h2(setting(4, 0), true)
		defer k.Close()
		for i, path := range []string{"/big", "/flush", "/small", "/quiet", "/small"} {
			k.say(request(uint32(2*i+1), path))
		}
		k.say(frame(frameWindow, 0, 9, u32(1000)))
		time.Sleep(patience - time.Millisecond)
		got, open := drain(frames)
		if !open || has(got, frameReset, 1) || has(got, frameReset, 3) || has(got, frameReset, 5) {
			t.Fatalf("too early: %v, %v", got, open)
		}
		if !has(got, frameData, 9) {
			t.Error("the stream with a window got no answer")
		}
		time.Sleep(2 * time.Millisecond)
		got, open = drain(frames)
		if !open || !has(got, frameReset, 1) || !has(got, frameReset, 3) || !has(got, frameReset, 5) || has(got, frameReset, 7) {
			t.Errorf("after the timeout: %v, %v", got, open)
		}
		time.Sleep(2 * time.Hour)
		got, open = drain(frames)
		if !open || has(got, frameReset, 7) || !has(got, frameData, 7) {
			t.Errorf("the quiet stream: %v, %v", got, open)
		}
		w.wantStats(Stats{SlowStreams: 2})
	})
}

func TestRapidReset(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	inWorld(t, Limits{H2C: true, MaxStreams: 100, WriteTimeout: time.Minute}, handler, func(w *world) {
		k, frames := w.h2("", true)
		defer k.Close()
		sent := 0
		for ; sent < 10*manyResets; sent++ {
			id := uint32(2*sent + 1)
			if _, err := io.WriteString(k, request(id, "/")+frame(frameReset, 0, id, u32(8))); err != nil {
				break
			}
			synctest.Wait() // so that it is not net/http's own limit of waiting streams
		}
		if _, open := drain(frames); open || sent < manyResets-1 || sent > manyResets+1 {
			t.Errorf("open: %v after %d", open, sent)
		}
		w.wantStats(Stats{RapidResets: 1})
	})
}

// What net/http has against the same is there, too: streams that wait for the handlers of those that were cancelled.
func TestRapidResetWithSlowHandlers(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Minute) }
	inWorld(t, Limits{H2C: true, MaxStreams: 10}, handler, func(w *world) {
		k, frames := w.h2("", true)
		defer k.Close()
		sent := 0
		for ; sent < 10_000; sent++ {
			id := uint32(2*sent + 1)
			if _, err := io.WriteString(k, request(id, "/")); err != nil {
				break
			}
			synctest.Wait() // so that its handler begins
			if _, err := io.WriteString(k, frame(frameReset, 0, id, u32(8))); err != nil {
				break
			}
			if synctest.Wait(); w.front.Stats().RapidResets > 0 {
				break
			}
		}
		time.Sleep(5 * time.Second)
		if _, open := drain(frames); open || sent > 100 {
			t.Errorf("open: %v after %d", open, sent)
		}
		time.Sleep(time.Minute) // the handlers end
		w.wantStats(Stats{RapidResets: 1})
	})
}

// Clients that cancel calls for good reasons are not taken for that.
func TestClientsThatCancelAreLeftAlone(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	}
	for _, c := range []struct {
		name   string
		rounds int
		after  time.Duration // from a request to its end
		every  time.Duration // from round to round
		good   int           // calls beside each cancelled one
		burst  int
	}{
		{"a page of a hundred is left", 4, 0, time.Second, 0, 100},
		{"all calls run into a deadline of 50 ms", 100, 50 * time.Millisecond, 0, 0, 100},
		{"each call is hedged", 2000, 0, 0, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Limits{H2C: true, MaxStreams: 200, WriteTimeout: time.Minute}, handler, func(w *world) {
				k, frames := w.h2("", true)
				defer k.Close()
				id := uint32(1)
				for range c.rounds {
					first := id
					for range c.burst {
						k.say(request(id, "/hang"))
						id += 2
					}
					for range c.good {
						k.say(request(id, "/"))
						id += 2
					}
					time.Sleep(c.after)
					for i := range c.burst {
						k.say(frame(frameReset, 0, first+uint32(2*i), u32(8)))
					}
					synctest.Wait()
					time.Sleep(c.every)
				}
				if _, open := drain(frames); !open {
					t.Error("its connection was cut")
				}
				w.wantStats(Stats{})
			})
		})
	}
}

func TestFloodsOfFrames(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame func(i int) string
		first string
		reads bool
	}{
		{"pings, acknowledgements unread", func(int) string { return frame(framePing, 0, 0, "12345678") }, "", false},
		{"settings, acknowledgements unread", func(int) string { return frame(frameSettings, 0, 0, setting(4, 100)) }, "", false},
		{"resets of the server's making, unread", func(i int) string { return frame(frameHeaders, flagEndHeaders, uint32(2*i+1), "\x82") }, "", false},
		{"continuation without end", func(int) string {
			return frame(frameContinuation, 0, 1, strings.Repeat(literal("x", strings.Repeat("y", 100)), 100))
		},
			frame(frameHeaders, flagEndStream, 1, get("/")), true},
		{"continuation of nothing", func(int) string { return frame(frameContinuation, 0, 1, "") },
			frame(frameHeaders, flagEndStream, 1, get("/")), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Limits{H2C: true, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10}, hello, func(w *world) {
				k := w.dial("192.0.2.1:1")
				defer k.Close()
				if c.reads {
					go io.Copy(io.Discard, k)
				} else {
					go io.CopyN(io.Discard, k, 100)
				}
				began := time.Now()
				k.say(preface + frame(frameSettings, 0, 0, "") + c.first)
				sent := 0
				for ; sent < 200_000; sent++ {
					if _, err := io.WriteString(k, c.frame(sent)); err != nil {
						break
					}
					if c.name == "continuation of nothing" {
						time.Sleep(time.Second) // costs nothing, and a PING cannot be answered meanwhile
					}
				}
				if sent == 200_000 { // it cost no memory: but what is not read ends the connection
					time.Sleep(30 * time.Second)
				}
				if _, err := io.WriteString(k, c.frame(sent)); err == nil || time.Since(began) > time.Minute {
					t.Errorf("%d frames in %v, still there", sent, time.Since(began))
				}
			})
		})
	}
}

// A peer that is gone without a word, and one that dribbles a header, cannot answer a PING.
func TestHalfOpenHTTP2(t *testing.T) {
	for _, more := range []string{"", frame(frameHeaders, flagEndStream, 3, get("/")[:4])} {
		handler := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		inWorld(t, Limits{H2C: true, WriteTimeout: time.Hour}, handler, func(w *world) {
			k, frames := w.h2("", more != "")
			defer k.Close()
			synctest.Wait() // SETTINGS are settled
			began := time.Now()
			k.say(request(1, "/") + more)
			for range frames {
			}
			if took := time.Since(began); took < pingAfter || took > pingAfter+pingTimeout+time.Second {
				t.Errorf("closed after %v", took)
			}
			synctest.Wait()
			if more == "" {
				w.wantStats(Stats{LostPings: 1})
			}
		})
	}
}

// A method PRI in a request of HTTP/2 is no way around what is watched there.
func TestPRIOnHTTP2IsWatched(t *testing.T) {
	inWorld(t, Limits{H2C: true, WriteTimeout: 8 * time.Second}, hello, func(w *world) {
		k, frames := w.h2(setting(4, 0), true)
		defer k.Close()
		k.say(frame(frameHeaders, flagEndHeaders|flagEndStream, 1, literal(":method", "PRI")+"\x86"+literal(":path", "/")+literal(":authority", "a")))
		time.Sleep(9 * time.Second)
		if got, open := drain(frames); !open || !has(got, frameReset, 1) {
			t.Errorf("%v, %v", got, open)
		}
	})
}

func TestWithoutHTTP2ThePrefaceGetsAnAnswer(t *testing.T) {
	inWorld(t, Limits{}, func(http.ResponseWriter, *http.Request) { panic("the handler sees it") }, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		go io.WriteString(k, preface+frame(frameSettings, 0, 0, ""))
		if text := k.ended(); !strings.HasPrefix(text, "HTTP/1.1 505 ") || !strings.Contains(text, "Connection: close") {
			t.Errorf("%q", text)
		}
		w.wantStats(Stats{NoHTTP2: 1})
	})
}

// One connection too many is told so and then to go away, on HTTP/2 too.
func TestTooManyConnectionsOfHTTP2(t *testing.T) {
	inWorld(t, Limits{H2C: true, ConnectionsPerClient: 1, WriteTimeout: time.Minute}, hello, func(w *world) {
		first := w.dial("192.0.2.1:7")
		defer first.Close()
		k, frames := w.h2("", true)
		defer k.Close()
		k.say(request(1, "/"))
		var all []gotFrame
		for f := range frames {
			all = append(all, f)
		}
		if !has(all, frameHeaders, 1) || !has(all, frameGoAway, 0) {
			t.Error(fmt.Sprint(all))
		}
		w.wantStats(Stats{Client429: 1})
	})
}
