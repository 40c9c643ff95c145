package cortex

import (
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// StateChange is a transition of a target's circuit, or an operator's order to it, where From and To may be the same.
type StateChange struct {
	Target     string
	From, To   breaker.State
	Forcing    breaker.Forcing // in force from here on
	Generation uint32
	CPS        float64
	Evidence   float64
	Signals    Signals
}

// DecisionEvent is a refusal or a decision on a failed attempt.
type DecisionEvent struct {
	Target   string
	Priority Priority
	Attempt  int
	Decision Decision   // of a failed attempt; its Reason is set for refusals too
	Refusal  *Rejection // of an attempt before it was made, else nil
}

// queueBound is how many events may wait for a listener that blocks.
const queueBound = 1024

// queue holds events until the engine's lock is free. Whoever finds no one delivering delivers all that wait, so listeners
// are called in order, never two at a time and never under a lock; a listener that uses the engine only adds to the queue.
type queue struct {
	events     []any
	delivering bool
	dropped    uint64
}

func (q *queue) push(ev any) {
	if len(q.events) >= queueBound {
		q.dropped++
		return
	}
	q.events = append(q.events, ev)
}

// unlock releases e.mu and delivers what happened under it. One caller delivers at most as much as the queue holds: what is
// left then is for the next.
func (e *Engine) unlock() {
	defer e.mu.Unlock()
	if e.event.delivering {
		return
	}
	for n := 0; len(e.event.events) > 0 && n < queueBound; n++ {
		e.deliverNext()
	}
}

// deliverNext calls the listeners with e.mu free; it is held again afterwards, also when a listener ends the goroutine.
func (e *Engine) deliverNext() {
	ev := e.event.events[0]
	e.event.events[0] = nil
	e.event.events = e.event.events[1:]
	e.event.delivering = true
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.event.delivering = false
	}()
	e.deliver(ev)
}

func (e *Engine) deliver(ev any) {
	defer func() {
		if r := recover(); r != nil {
			e.log.Error("cortex: listener panicked", "target", e.cfg.Name, "panic", r)
		}
	}()
	switch ev := ev.(type) {
	case StateChange:
		e.log.Info("cortex: circuit", "target", ev.Target, "from", ev.From.String(), "to", ev.To.String(), "forcing", ev.Forcing.String(), "cps", ev.CPS,
			"evidence", ev.Evidence)
		if e.cfg.OnStateChange != nil {
			e.cfg.OnStateChange(ev)
		}
	case DecisionEvent:
		e.cfg.OnDecision(ev)
	}
}

// tell queues a decision for the listener and delivers it.
func (e *Engine) tell(ev DecisionEvent) {
	e.mu.Lock()
	e.event.push(ev)
	e.unlock()
}

// refused tells the listener of a refusal, where there is one.
func (e *Engine) refused(r *Rejection) {
	if e.cfg.OnDecision == nil {
		return
	}
	e.tell(DecisionEvent{Target: e.cfg.Name, Priority: r.Priority, Refusal: r,
		Decision: Decision{Reason: r.Reason, CPS: r.CPS, Evidence: r.Evidence, Signals: r.Signals, State: StateOf(r.CPS), Circuit: r.Circuit, Floor: r.Floor}})
}

// rejection is a Rejection with the moment it was made, so that it can be shared while it is fresh.
type rejection struct {
	Rejection
	at time.Duration
}

// reject counts a refusal and returns its error, shared while fresh: a storm of refusals must not allocate. e.mu is held.
func (e *Engine) reject(now time.Duration, reason Reason, prio int) *Rejection {
	e.refusedBy[reason].Add(1)
	slot := &e.rejections[reason][prio]
	if r := slot.Load(); r != nil && now-r.at < rejectionAge && r.Circuit == e.state {
		return &r.Rejection
	}
	p := e.pressure(now)
	r := &rejection{at: now, Rejection: Rejection{Target: e.cfg.Name, Reason: reason, Priority: Priority(prio), Floor: p.Floor,
		CPS: p.CPS, Evidence: p.Evidence, Signals: p.Signals, Circuit: p.Circuit,
		Forced: p.Forcing != breaker.Automatic, RetryAfter: retryAfter(p)}}
	slot.Store(r)
	return &r.Rejection
}

// forcedRetryAfter is what callers are told while the circuit is forced open. An operator's order lasts for minutes, but ends without
// notice.
const forcedRetryAfter = 10 * time.Second

// retryAfter estimates when it is worth asking again: with the next probe, or when a second's worth of shedding has passed.
func retryAfter(p Pressure) time.Duration {
	if p.Forcing == breaker.ForcedOpen {
		return forcedRetryAfter
	}
	if p.Circuit != breaker.Closed {
		return max(p.NextProbe, 100*time.Millisecond)
	}
	return time.Second
}
