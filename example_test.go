package cortex_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/fallback"
)

// A guard in front of a function: admission, an attempt timeout, retries under pressure and budget, the circuit.
func ExampleDo() {
	guard, err := cortex.New(cortex.Config{
		Name:     "ledger",
		Backoff:  backoff.Config{Base: time.Millisecond},
		Deadline: 3 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	attempt := 0
	balance, err := cortex.Do(context.Background(), guard, func(ctx context.Context) (string, error) {
		attempt++
		if attempt == 1 {
			return "", errors.New("connection reset by peer")
		}
		return "42 EUR", nil
	}, cortex.WithPriority(9))
	fmt.Println(balance, err, "after", attempt, "attempts")

	_, err = cortex.Do(context.Background(), guard, func(ctx context.Context) (string, error) {
		return "", cortex.Permanent(errors.New("no such account"))
	})
	fmt.Println(err)
	// Output:
	// 42 EUR <nil> after 2 attempts
	// cortex: ledger: no such account (1 attempt, no further: NOT_RETRYABLE)
}

// Programs that make their calls themselves use the parts.
func ExampleEngine_Admit() {
	guard, err := cortex.New(cortex.Config{Name: "ledger"})
	if err != nil {
		fmt.Println(err)
		return
	}
	call := func(ctx context.Context) error {
		permit, err := guard.Admit(ctx, 5)
		if err != nil {
			return err // a *cortex.Rejection, with the reason and the numbers
		}
		defer permit.Release() // frees it whatever happens; after Done it does nothing
		ctx, cancel := context.WithTimeout(ctx, permit.Timeout())
		defer cancel()
		err = query(ctx)
		permit.Done(err)
		return err
	}
	fmt.Println(call(context.Background()))
	p := guard.Pressure()
	fmt.Printf("%s, circuit %s, %d in flight\n", p.State, p.Circuit, p.InFlight)
	// Output:
	// <nil>
	// HEALTHY, circuit closed, 0 in flight
}

func query(context.Context) error { return nil }

// Named tiers of a system of five levels: what is shed first has the lowest number, and the top is critical.
const (
	TierBatch   cortex.Priority = 1 // reports, warm-ups
	TierBrowse  cortex.Priority = 2 // can be shown stale
	TierDefault cortex.Priority = 3
	TierMoney   cortex.Priority = 4 // flows as long as anything does
)

// A system with N tiers sets Levels to N+1. At a pressure of 0.72 the floor of the article's law is then ⌊0.72 × 5⌋ = 3.
func ExampleConfig_tiers() {
	guard, err := cortex.New(cortex.Config{Name: "payments", Levels: 5})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, tier := range []cortex.Priority{TierBatch, TierBrowse, TierMoney} {
		d := cortex.Situation{
			Profile: cortex.Article, Levels: guard.Config().Levels, Priority: tier,
			Signals:   cortex.Signals{F: 0.9, L: 0.75, Q: 1, B: 1},
			Retryable: true, MaxRetries: 3, Tokens: 1, Price: 1,
		}.Decide(func() float64 { return 0.5 })
		fmt.Printf("tier %d at %.2f: retry %v %s\n", tier, d.CPS, d.Retry, d.Reason)
	}
	// Output:
	// tier 1 at 0.72: retry false SHED_LOW_PRIORITY
	// tier 2 at 0.72: retry false SHED_LOW_PRIORITY
	// tier 4 at 0.72: retry true
}

// A pool of the user's own as the queue signal: Q is how full it is, and calls are shed, lowest priority first, when it is over 80 %.
func ExampleConfig_queue() {
	sql.Register("example", noDriver{})
	db, err := sql.Open("example", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(4)

	guard, err := cortex.New(cortex.Config{
		Name:    "orders-db",
		Weights: cortex.TransactionalWeights, // the queue says more than latency does
		Queue: func() (current, capacity float64) {
			s := db.Stats()
			return float64(s.InUse), float64(s.MaxOpenConnections)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		if _, err := db.Conn(context.Background()); err != nil { // taken and held
			fmt.Println(err)
			return
		}
	}
	fmt.Printf("Q = %.2f\n", guard.Pressure().Signals.Q)
	// Output: Q = 0.75
}

// noDriver stands for a real database.
type noDriver struct{}

func (noDriver) Open(string) (driver.Conn, error) { return noConn{}, nil }

type noConn struct{ driver.Conn }

func (noConn) Close() error { return nil }

// The last good answer, at most five minutes old, in place of one that cannot be had; then a static one. An answer says where it
// comes from.
func ExampleDoOr() {
	guard, err := cortex.New(cortex.Config{Name: "ledger", DisableRetries: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	last, err := fallback.NewCache(fallback.CacheConfig[string]{})
	if err != nil {
		fmt.Println(err)
		return
	}
	down := false
	balance := func(account string) {
		answer, err := cortex.DoOr(context.Background(), guard, fallback.Ladder[string]{
			fallback.Cached(last, account, 5*time.Minute),
			fallback.Static("not known at the moment"),
		}, func(ctx context.Context) (string, error) {
			if down {
				return "", errors.New("connection refused")
			}
			last.Put(account, "42 EUR")
			return "42 EUR", nil
		})
		fmt.Printf("%s: %s (source %s) %v\n", account, answer.Value, answer.Source, err)
	}
	balance("alice")
	down = true
	balance("alice")
	balance("bob")
	// Output:
	// alice: 42 EUR (source none) <nil>
	// alice: 42 EUR (source cache) <nil>
	// bob: not known at the moment (source static) <nil>
}

// An engine for each target, made when it is first asked for.
func ExampleRegistry() {
	guards := cortex.NewRegistry(func(target string) cortex.Config {
		if target == "payments" {
			return cortex.Config{Weights: cortex.TransactionalWeights}
		}
		return cortex.Config{}
	}, 500)
	guard, err := guards.Engine("payments")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(guard.Name(), guard.Config().Weights.Q, guards.Len())
	// Output: payments 0.25 1
}
