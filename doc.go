// Package cortex guards calls to a downstream service with one feedback loop.
//
// Five signals (failure rate, latency deviation, queue pressure, retry-budget burn and circuit state) make one Composite
// Pressure Score, and that score drives admission, retries, backoff, priority shedding, the circuit breaker, timeouts and
// fallbacks. An [Engine] guards one target; [Do] runs a function under it:
//
//	guard, err := cortex.New(cortex.Config{Name: "ledger"})
//	…
//	balance, err := cortex.Do(ctx, guard, func(ctx context.Context) (Balance, error) {
//		return ledger.Balance(ctx, account)
//	}, cortex.WithPriority(9))
//
// Programs that make their calls themselves use the parts: [Engine.Admit] returns a one-shot [Permit], [Permit.Done] takes
// the outcome, [Engine.Decide] runs the five checks on a failed attempt, [Engine.Pressure] shows the score.
//
// The package and everything it imports use the standard library only. No goroutine or ticker runs behind an engine:
// estimators advance lazily, at most once a millisecond, by whichever call finds them stale.
package cortex
