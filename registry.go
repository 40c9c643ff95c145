package cortex

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// Overflow is the name of the engine that serves the targets for which a [Registry] has no room.
const Overflow = "(overflow)"

// victimSteps bounds the search for an engine to evict; the next search goes on from there.
const victimSteps = 256

// DefaultRegistryLimit is how many engines a [Registry] holds unless told otherwise.
const DefaultRegistryLimit = 1000

// A Registry keeps an engine per target: a host, a tenant, a method class. It holds a bounded number; when it is full, the
// engine that was least recently asked for makes room, but never one whose circuit is not closed or is forced, or that has attempts in
// flight: forgetting those would let a storm through. All methods are safe for concurrent use.
type Registry struct {
	config func(target string) Config
	limit  int

	mu      sync.RWMutex
	engines map[string]*entry
	ring    []*entry // the clock hand goes round here
	hand    int
	shared  *Engine // serves targets for which there is no room

	evicted  atomic.Uint64
	overflow atomic.Uint64
}

type entry struct {
	target string
	engine *Engine
	used   atomic.Bool
}

// NewRegistry returns a registry whose engines are configured by config, which must be safe for concurrent use; the name is
// set to the target. limit ≤ 0 means [DefaultRegistryLimit]. Memory is 51 to 60 KiB a target, by
// the number of processors.
func NewRegistry(config func(target string) Config, limit int) *Registry {
	if limit <= 0 {
		limit = DefaultRegistryLimit
	}
	return &Registry{config: config, limit: limit, engines: make(map[string]*entry)}
}

// Engine returns the engine of a target, making it if needed. The error is that of [New] for the target's configuration.
// When every engine held is needed, targets beyond the limit share one engine.
func (r *Registry) Engine(target string) (*Engine, error) {
	r.mu.RLock()
	en := r.engines[target]
	r.mu.RUnlock()
	if en != nil {
		if !en.used.Load() {
			en.used.Store(true)
		}
		return en.engine, nil
	}
	if shared := r.full(); shared != nil {
		r.overflow.Add(1)
		return shared, nil
	}
	c := r.config(target) // user code: outside the lock
	c.Name = target
	e, err := New(c)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", target, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if en := r.engines[target]; en != nil { // somebody was faster
		return en.engine, nil
	}
	at := len(r.ring)
	if at < r.limit {
		r.ring = append(r.ring, nil)
	} else if at = r.victim(); at < 0 {
		r.overflow.Add(1)
		if r.shared == nil {
			e.cfg.Name = Overflow // it serves many; nobody else has it yet
			r.shared = e
		}
		return r.shared, nil
	} else {
		delete(r.engines, r.ring[at].target)
		r.evicted.Add(1)
	}
	// Not marked as used before it is asked for again: targets that come once make room first.
	en = &entry{target: target, engine: e}
	r.ring[at] = en
	if at == r.hand && len(r.ring) == r.limit {
		r.hand = (r.hand + 1) % len(r.ring)
	}
	r.engines[target] = en
	return e, nil
}

// full returns the shared engine if there is one and still no room for another: a flood of targets must not cost an engine
// each.
func (r *Registry) full() *Engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared == nil || r.victim() >= 0 {
		return nil
	}
	return r.shared
}

// victim finds the place of the least recently used engine that may go, by the clock algorithm; -1 when there is none within
// a bounded number of steps.
func (r *Registry) victim() int {
	for range min(2*len(r.ring), victimSteps) {
		en := r.ring[r.hand]
		if !en.used.Swap(false) && !en.engine.needed() {
			return r.hand
		}
		r.hand = (r.hand + 1) % len(r.ring)
	}
	return -1
}

// needed reports whether forgetting the engine would lose protection.
func (e *Engine) needed() bool {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.breaker.State(now) != breaker.Closed || e.forcing() != breaker.Automatic || e.countInFlight() > 0
}

// Lookup returns the engine that a target has of its own, nil where it has none. It makes none, and is no use that keeps one.
func (r *Registry) Lookup(target string) *Engine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if en := r.engines[target]; en != nil {
		return en.engine
	}
	return nil
}

// Len is the number of engines held.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.engines)
}

// Counts tells how many engines made room for others, and how many times a target had to share one because there was none
// that could go.
func (r *Registry) Counts() (evicted, overflowed uint64) { return r.evicted.Load(), r.overflow.Load() }

// All calls yield for every engine held, the shared one included, until it returns false; in no particular order, on a
// snapshot.
func (r *Registry) All(yield func(*Engine) bool) {
	r.mu.RLock()
	es := make([]*Engine, 0, len(r.engines))
	for _, en := range r.engines {
		es = append(es, en.engine)
	}
	if r.shared != nil {
		es = append(es, r.shared)
	}
	r.mu.RUnlock()
	for _, e := range es {
		if !yield(e) {
			return
		}
	}
}
