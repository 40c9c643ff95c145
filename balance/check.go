package balance

import (
	"context"
	"fmt"
	"time"
)

// watch begins to check members that are not checked yet, if checks have begun. p.mu is held.
func (p *Pool) watch() {
	if p.cfg.Check == nil || p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	for _, m := range p.members {
		if m.stopCheck == nil {
			ctx, stop := context.WithCancel(p.ctx)
			m.stopCheck = stop
			p.running.Go(func() { p.check(ctx, m) })
		}
	}
}

// check asks one member until the context ends: one check at a time, the first at a random time within the interval, so that
// they are spread over the members.
func (p *Pool) check(ctx context.Context, m *Member) {
	c := p.cfg.Check
	wait := time.Duration(p.cfg.Rand() * float64(c.Interval))
	for sleep(ctx, wait) {
		start := p.cfg.Now()
		err := p.probe(ctx, m)
		if ctx.Err() != nil {
			return
		}
		p.checked(m, err)
		wait = max(0, p.jitter(c.Interval)-(p.cfg.Now()-start))
	}
}

func (p *Pool) probe(ctx context.Context, m *Member) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Check.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("balance: Probe panicked: %v", v)
		}
	}()
	if err = p.cfg.Probe(ctx, m); err == nil {
		err = ctx.Err()
	}
	return err
}

// checked counts a check.
func (p *Pool) checked(m *Member, err error) {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.unlock()
	if m.removed {
		return
	}
	if m.checkedOut == (err != nil) {
		m.checks = 0
		return
	}
	m.checks++
	switch {
	case err != nil && m.checks >= p.cfg.Check.Unhealthy:
		m.checkedOut, m.checks = true, 0
		p.tell(Event{Kind: CheckedOut, Member: m, Err: err})
		p.rebuild(now)
	case err == nil && m.checks >= p.cfg.Check.Healthy:
		m.checkedOut, m.checks = false, 0
		m.streak.Store(0)
		m.blamed.Store(false)
		m.comeBack(now)
		p.tell(Event{Kind: CheckedIn, Member: m})
		p.rebuild(now)
	}
}

// jitter is a time, give or take a tenth.
func (p *Pool) jitter(d time.Duration) time.Duration {
	return d + time.Duration((p.cfg.Rand()-0.5)/5*float64(d))
}

// sleep waits; it is false if the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
