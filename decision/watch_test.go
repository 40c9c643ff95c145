package decision

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seed-a29ca62a/cortex/breaker"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

func (w *world) rpc() pb.DecisionServiceClient { return pb.NewDecisionServiceClient(w.client, w.url) }

type stream = connect.ServerStreamForClient[pb.WatchResponse]

func (w *world) watch(ctx context.Context, targets ...string) *stream {
	w.t.Helper()
	s, err := w.rpc().Watch(ctx, &pb.WatchRequest{Targets: targets, IntervalMs: ptr(int32(50))})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

func (w *world) next(s *stream) *pb.WatchResponse {
	w.t.Helper()
	if !s.Receive() {
		w.t.Fatalf("the stream has ended: %v", s.Err())
	}
	return s.Msg()
}

func TestWatchTellsOfChanges(t *testing.T) {
	w := newWorld(t)
	w.engine("a")
	w.engine("b")
	s := w.watch(background)
	if m := w.next(s); len(m.Changes) != 2 || m.Changes[0].Target != "a" || m.Changes[1].Circuit != "closed" || m.Heartbeat {
		t.Fatalf("at first: %v", m)
	}
	w.engine("a").Force(breaker.ForcedOpen)
	w.add(time.Second) // so that what is known is old
	if m := w.next(s); len(m.Changes) != 1 || m.Changes[0].Target != "a" || m.Changes[0].Circuit != "open" || m.Changes[0].Forcing != "open" {
		t.Fatalf("%v", m)
	}
	w.engine("c")
	w.add(time.Second)
	if m := w.next(s); len(m.Changes) != 1 || m.Changes[0].Target != "c" {
		t.Fatalf("%v", m)
	}
	w.add(10 * time.Second)
	if m := w.next(s); !m.Heartbeat || len(m.Changes) != 0 {
		t.Fatalf("%v", m)
	}
}

func TestWatchOfSomeDoesNotMakeThem(t *testing.T) {
	w := newWorld(t)
	w.engine("other")
	s := w.watch(background, "later")
	if m := w.next(s); !m.Heartbeat || len(m.Changes) != 0 {
		t.Fatalf("%v", m)
	}
	if w.registry.Len() != 1 {
		t.Fatal("a watch has made a target")
	}
	w.engine("later")
	w.add(time.Second)
	if m := w.next(s); len(m.Changes) != 1 || m.Changes[0].Target != "later" {
		t.Fatalf("%v", m)
	}
}

func TestWatchesAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxWatches = 2 })
	ctx, cancel := context.WithCancel(background)
	for range 2 {
		w.next(w.watch(ctx))
	}
	s := w.watch(ctx)
	if s.Receive() || connect.CodeOf(s.Err()) != connect.CodeResourceExhausted {
		t.Errorf("%v", s.Err())
	}
	cancel()
	for i := 0; w.service.watches.Load() > 0; i++ {
		if i > 5000 {
			t.Fatal("watches whose clients left are still there")
		}
		time.Sleep(time.Millisecond)
	}
	w.next(w.watch(background))
}

func TestWatchEndsWithTheService(t *testing.T) {
	stop := make(chan struct{})
	w := newWorld(t, func(c *Config) { c.Stop = stop })
	s := w.watch(background)
	w.next(s)
	close(stop)
	if s.Receive() || connect.CodeOf(s.Err()) != connect.CodeUnavailable {
		t.Errorf("%v", s.Err())
	}
}

func TestWatchRefuses(t *testing.T) {
	w := newWorld(t)
	many := slices.Repeat([]string{"a"}, 1001)
	for _, r := range []*pb.WatchRequest{{Targets: []string{""}}, {Targets: many}, {IntervalMs: ptr(int32(1))}} {
		s, err := w.rpc().Watch(background, r)
		if err != nil {
			t.Fatal(err)
		}
		if s.Receive() || connect.CodeOf(s.Err()) != connect.CodeInvalidArgument {
			t.Errorf("%.50v: %v", r, s.Err())
		}
		s.Close()
	}
}

func TestDiff(t *testing.T) {
	at := func(target string, cps float64, floor int32, circuit string) *pb.Pressure {
		return &pb.Pressure{Target: target, Cps: cps, Floor: floor, Circuit: circuit}
	}
	last := map[string]*pb.Pressure{}
	for i, step := range []struct {
		now     []*pb.Pressure
		changes int
		gone    []string
	}{
		{[]*pb.Pressure{at("a", 0, 0, "closed"), at("b", 0, 0, "closed")}, 2, nil},
		{[]*pb.Pressure{at("a", 0.0099, 0, "closed"), at("b", 0, 0, "closed")}, 0, nil},
		{[]*pb.Pressure{at("a", 0.01, 0, "closed"), at("b", 0, 0, "closed")}, 1, nil}, // slow drift adds up: it is compared with what was sent
		{[]*pb.Pressure{at("a", 0.01, 1, "closed"), at("b", 0, 0, "open")}, 2, nil},
		{[]*pb.Pressure{at("b", 0, 0, "open")}, 0, []string{"a"}},
		{[]*pb.Pressure{at("c", 0, 0, "closed")}, 1, []string{"b"}},
	} {
		changes, gone := diff(last, step.now, nil)
		if len(changes) != step.changes || !slices.Equal(gone, step.gone) {
			t.Errorf("step %d: %v, gone %v", i, changes, gone)
		}
	}
}

func TestListGoesOn(t *testing.T) {
	known := newWorld(t).engine("t05")
	w := newWorld(t, withKnown(known))
	known.Force(breaker.ForcedOpen)
	for i := range 20 {
		w.engine(fmt.Sprintf("t%02d", i))
	}
	after, n := "", 0
	for page := 0; ; page++ {
		out, err := w.rpc().List(background, &pb.ListRequest{After: &after, Limit: ptr(int32(7))})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range out.Targets {
			if want := fmt.Sprintf("t%02d", n); p.Target != want || (p.Circuit == "open") != (n == 5) {
				t.Errorf("%v, want %s", p, want)
			}
			n++
		}
		if after = out.Next; after == "" {
			break
		}
	}
	if n != 20 {
		t.Errorf("%d targets", n)
	}
}

// Nothing stays behind when clients come and go.
func TestNoGoroutineStays(t *testing.T) {
	w := newWorld(t)
	w.ask("List", `{}`)
	w.client.CloseIdleConnections()
	settled := func() int {
		n := runtime.NumGoroutine()
		for range 100 {
			time.Sleep(2 * time.Millisecond)
			n = min(n, runtime.NumGoroutine())
		}
		return n
	}
	before := settled()
	for range 20 {
		ctx, cancel := context.WithCancel(background)
		s, err := w.rpc().Watch(ctx, &pb.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		w.next(s)
		w.ask("Admit", `{"target":"a","priority":9}`)
		cancel()
		s.Close()
	}
	w.client.CloseIdleConnections()
	if after := settled(); after > before+2 {
		t.Errorf("%d goroutines, before %d", after, before)
	}
}

// A watch in JSON, without a library, as the documents describe it.
func TestWatchInJSON(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxWatches = 1 })
	w.engine("a")
	watch := func(ctx context.Context, ask string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, "POST", w.url+"/cortex.v1.DecisionService/Watch", strings.NewReader("\x00\x00\x00\x00"+string(rune(len(ask)))+ask))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/connect+json")
		res, err := w.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/connect+json" {
			t.Errorf("%s: %s, %v", ask, res.Status, res.Header)
		}
		return res
	}
	next := func(res *http.Response) (flag byte, m struct {
		Changes []struct{ Target string }
		Error   struct{ Code, Message string }
	}) {
		head := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, head); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(res.Body, text); err != nil || json.Unmarshal(text, &m) != nil {
			t.Fatalf("%q, %v", text, err)
		}
		return head[0], m
	}
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	one := watch(ctx, `{}`)
	defer one.Body.Close()
	if flag, m := next(one); flag != 0 || len(m.Changes) != 1 || m.Changes[0].Target != "a" {
		t.Errorf("%d %+v", flag, m)
	}
	for ask, code := range map[string]string{`{}`: "resource_exhausted", `{"interval_ms":1}`: "invalid_argument", `{"interval":1}`: "invalid_argument"} {
		res := watch(ctx, ask)
		if flag, m := next(res); flag != 2 || m.Error.Code != code || m.Error.Message == "" {
			t.Errorf("%s: flag %d, %+v", ask, flag, m)
		}
		if rest, err := io.ReadAll(res.Body); len(rest) > 0 || err != nil {
			t.Errorf("%s: %q after the end, %v", ask, rest, err)
		}
		res.Body.Close()
	}
}
