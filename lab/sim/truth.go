package sim

// Truth is the state of the target, which no client can see: for guards that are yardsticks, such as an oracle.
type Truth struct {
	InService int     // attempts that workers hold, work whose client has gone included; above the workers after a loss of some
	Waiting   int     // attempts in the queue, the same
	Tokens    float64 // attempts that a throttle in force lets through now
}

// truth looks into the target.
func (w *World) truth() Truth {
	t := w.target
	x := Truth{InService: len(t.serving), Waiting: t.n - t.holes}
	if f := t.throttle; f != nil {
		x.Tokens = min(burst(f.Limit), t.tokens+(w.now-t.refilled).Seconds()*f.Limit)
	}
	return x
}
