package decision

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seed-a29ca62a/cortex"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

const (
	snapshotAge     = 50 * time.Millisecond
	defaultInterval = 200
	changed         = 0.01 // of the score is worth telling
	chunk           = 1000 // targets a message
)

// snapshot is the pressure of all targets by name: all who watch share it. It is at most 50 ms old, or, of very many targets, so old that
// a twentieth of the time is spent on it.
type snapshot struct {
	mu   sync.Mutex
	at   time.Duration
	took time.Duration
	list []*pb.Pressure // nil: none yet; never changed
}

func (s *service) pressures() []*pb.Pressure {
	p := &s.snapshot
	p.mu.Lock()
	defer p.mu.Unlock()
	now := s.Now()
	s.tokens.expire(now)
	if p.list != nil && now-p.at < max(snapshotAge, 20*p.took) {
		return p.list
	}
	seen := map[string]bool{}
	list := []*pb.Pressure{}
	add := func(e *cortex.Engine) bool {
		if name := e.Name(); !seen[name] { // a target of the configuration comes before one that was made
			seen[name] = true
			list = append(list, pressure(e))
		}
		return true
	}
	if s.All != nil {
		s.All()(add)
	}
	if s.Others != nil {
		s.Others.All(add)
	}
	slices.SortFunc(list, func(a, b *pb.Pressure) int { return strings.Compare(a.Target, b.Target) })
	p.list, p.at, p.took = list, now, s.Now()-now
	return list
}

func pressure(e *cortex.Engine) *pb.Pressure {
	p := e.Pressure()
	return &pb.Pressure{Target: e.Name(), Cps: places4(p.CPS), Evidence: places4(p.Evidence), Signals: signals(p.Signals), State: p.State.String(),
		Floor: int32(p.Floor), Circuit: p.Circuit.String(), Forcing: p.Forcing.String(), Shed: places4(p.Shed), InFlight: int32(min(p.InFlight, math.MaxInt32)),
		Limit: places4(p.Limit), Tokens: places4(p.Tokens), TimeoutMs: toMS(p.Timeout)}
}

// List tells of the targets there are.
func (s *service) List(_ context.Context, r *pb.ListRequest) (*pb.ListResponse, error) {
	n, err := within("limit", r.Limit, 1, maxTargets)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		n = maxTargets
	}
	if err := text("after", r.GetAfter(), 100); err != nil {
		return nil, err
	}
	all := s.pressures()
	if r.After != nil {
		all = all[sort.Search(len(all), func(i int) bool { return all[i].Target > *r.After }):]
	}
	out := &pb.ListResponse{Targets: all}
	if len(all) > n {
		out.Targets, out.Next = all[:n], all[n-1].Target
	}
	return out, nil
}

// Watch sends what changes.
func (s *service) Watch(ctx context.Context, r *pb.WatchRequest, stream *connect.ServerStream[pb.WatchResponse]) error {
	interval, err := within("interval_ms", r.IntervalMs, 50, 60_000)
	if err != nil {
		return err
	}
	if interval == 0 {
		interval = defaultInterval
	}
	wanted, err := s.wanted(r.Targets)
	if err != nil {
		return err
	}
	if s.watches.Add(1) > int64(s.MaxWatches) {
		s.watches.Add(-1)
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("there are %d watches already: want fewer, or a larger bound", s.MaxWatches))
	}
	defer s.watches.Add(-1)
	conn := connOf(ctx)
	conn.reads(0) // nothing more is to come from the client
	send := func(m *pb.WatchResponse) error {
		conn.writes(writeTimeout) // a client that does not read is no reason to stay
		return stream.Send(m)
	}
	tick := time.NewTicker(time.Duration(interval) * time.Millisecond)
	defer tick.Stop()
	last := map[string]*pb.Pressure{}
	quiet := s.Now()
	for first := true; ; first = false {
		changes, gone := diff(last, s.pressures(), wanted)
		if now := s.Now(); first || len(changes) > 0 || len(gone) > 0 {
			for part := range slices.Chunk(changes, chunk) {
				if err := send(&pb.WatchResponse{Changes: part}); err != nil {
					return err
				}
			}
			if first && len(changes) == 0 || len(gone) > 0 {
				if err := send(&pb.WatchResponse{Gone: gone, Heartbeat: len(gone) == 0}); err != nil {
					return err
				}
			}
			quiet = now
		} else if now-quiet >= s.Heartbeat {
			if err := send(&pb.WatchResponse{Heartbeat: true}); err != nil {
				return err
			}
			quiet = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Stop:
			return connect.NewError(connect.CodeUnavailable, errors.New("the service is stopping: watch again in a moment"))
		case <-tick.C:
		}
	}
}

// wanted is the set of targets of a watch; nil: all.
func (s *service) wanted(targets []string) (map[string]bool, error) {
	if len(targets) == 0 {
		return nil, nil
	}
	if len(targets) > maxTargets {
		return nil, invalid("targets", "%d of them: want at most %d, or none for all", len(targets), maxTargets)
	}
	set := make(map[string]bool, len(targets))
	for i := range targets {
		field := fmt.Sprintf("targets[%d]", i)
		if s.Others == nil || !isTargetName(targets[i]) {
			if _, err := s.engine(field, &targets[i]); err != nil {
				return nil, err
			}
		}
		set[targets[i]] = true // it may come yet; a watch does not make it
	}
	return set, nil
}

// diff brings last to what is now, and returns what of it is worth telling.
func diff(last map[string]*pb.Pressure, now []*pb.Pressure, wanted map[string]bool) (changes []*pb.Pressure, gone []string) {
	there := 0
	for _, p := range now {
		if wanted != nil && !wanted[p.Target] {
			continue
		}
		there++
		was := last[p.Target]
		if was == nil || was.State != p.State || was.Circuit != p.Circuit || was.Floor != p.Floor || was.Forcing != p.Forcing ||
			math.Abs(was.Cps-p.Cps) >= changed {
			last[p.Target] = p
			changes = append(changes, p)
		}
	}
	if len(last) > there { // some of them are there no more
		for name := range last {
			if _, found := slices.BinarySearchFunc(now, name, func(p *pb.Pressure, name string) int { return strings.Compare(p.Target, name) }); !found {
				gone = append(gone, name)
				delete(last, name)
			}
		}
		slices.Sort(gone)
	}
	return changes, gone
}
