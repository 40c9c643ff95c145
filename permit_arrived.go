package cortex

// Arrived tells that the target has answered although nobody has read the answer yet, as where its bytes are in the kernel while the
// process is too busy to come to them: the attempt's latency is fixed and it is no longer in flight, and what it waits for from here
// on is not the target's doing. Unlike [Permit.Answered] it says nothing of the answer. Arrived(false) takes it back, where what came was not the
// answer (a 1xx, a part of a header): the attempt is in flight as if it had been all the time. It does nothing on an attempt that is
// paused, was answered, or is over.
func (p *Permit) Arrived(here bool) {
	if p.e == nil {
		return
	}
	now := p.e.now()
	owes := false
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	switch {
	case here && p.state == 0:
		p.leave(s, now)
		p.state |= arrived
	case !here && p.state == left|arrived && s.epoch-p.epoch <= 1: // else it was written off
		s.done -= p.latency // of which leave counts all when it leaves for good
		p.state, p.latency, p.epoch = 0, 0, s.epoch
		s.credit--
		s.reenter(p.start)
		owes = s.credit < 0
	}
	s.mu.Unlock()
	if owes {
		p.e.mu.Lock()
		p.e.borrow(s)
		p.e.unlock()
	}
}
