package cortexhttp

import "github.com/seed-a29ca62a/cortex"

// Shadow mode: a call is made as if there were no guard, and what that would have done is only told.

// wouldRefuse tells of the refusal of a call that is made all the same.
func (c *call) wouldRefuse(err error) {
	if c.report != nil {
		c.report.WouldRefuse = err.(*cortex.Rejection)
	}
}

// watched tells what the engine would have done about the one attempt. What Decide charges for a retry stays charged: the
// budget is as empty as it would be.
func (c *call) watched(a *attempt, v *verdict) {
	if c.report != nil {
		c.report.WouldCut = a.lapsed
	}
	switch {
	case c.ctx.Err() != nil && v.resp == nil:
		c.gaveUp()
		return
	case c.free || c.made == 0 || v.good():
		return
	}
	seen := *v
	if a.lapsed {
		if seen.err = (&attemptTimeout{after: a.timeout}); a.upload != nil && a.upload.callersFault() {
			c.wouldEnd(cortex.ReasonDeadline)
			return
		}
	}
	d, skip := c.decide(&seen)
	if c.report != nil {
		c.report.WouldRetry, c.report.WouldDelay, c.report.WouldReason = d.Retry, d.Delay, d.Reason
		c.report.ReplaySkipped = skip
	}
}

func (c *call) wouldEnd(r cortex.Reason) {
	if c.report != nil {
		c.report.WouldReason = r
	}
}

// lapse takes it down that the time of an attempt is up that is not cut. For the engine it has ended.
func (a *attempt) lapse() {
	a.permit.Record(a.lapseOutcome())
}

func (a *attempt) lapseOutcome() cortex.Outcome {
	if a.upload != nil && a.upload.callersFault() {
		return cortex.Neutral
	}
	return cortex.TimedOut
}
