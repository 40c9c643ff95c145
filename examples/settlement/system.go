package main

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// Tiers, of five levels: who is shed first when there is not enough for all.
const (
	levels     = 5
	settlement = cortex.Priority(4) // and ledger commits
	profile    = cortex.Priority(2)
	analytics  = cortex.Priority(1)
)

// tiers is what the methods that clients call are worth. Behind the first door a call keeps its tier: it travels with it.
var tiers = map[string]cortex.Priority{
	"/delegation/Settle":        settlement,
	"/delegation/UpdateProfile": profile,
	"/delegation/Analyse":       analytics,
}

// Times that the ledger's database takes, and how many connections it has.
const (
	commitTakes   = 4 * time.Millisecond
	queryTakes    = 10 * time.Millisecond
	slowTakes     = 250 * time.Millisecond // the same query, when its index is gone
	connections   = 16
	walletWorkers = 32
	delegWorkers  = 64
)

// system is the three services: clients → delegation → wallet → ledger.
type system struct {
	door    *grpc.ClientConn // clients' own, without a guard
	slow    atomic.Bool      // the fault
	workers slots            // of the wallet
	stops   []func()
}

func (s *system) stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

// newSystem starts the services. guarded is the one difference between the two runs: interceptors on their clients and servers.
func newSystem(guarded bool) (s *system, err error) {
	s = &system{workers: make(slots, walletWorkers)}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()

	// The ledger: everything takes a connection of its database.
	db := make(slots, connections)
	query := func(ctx context.Context, takes time.Duration) error {
		if err := db.take(ctx); err != nil {
			return err
		}
		defer db.leave()
		time.Sleep(takes) // a database goes on with a query that nobody waits for any more
		return ctx.Err()
	}
	lookUp := func(ctx context.Context, n int64) (int64, error) { // by account: balances for profiles, sums for analytics
		if s.slow.Load() {
			return n, query(ctx, slowTakes)
		}
		return n, query(ctx, queryTakes)
	}
	ledger, err := s.start(guarded, "ledger", db, map[string]method{
		"Commit": func(ctx context.Context, n int64) (int64, error) { return n, query(ctx, commitTakes) },
		"LookUp": lookUp,
	})
	if err != nil {
		return s, err
	}

	toLedger, err := s.connect(guarded, "wallet to ledger", ledger)
	if err != nil {
		return s, err
	}
	wallet, err := s.start(guarded, "wallet", s.workers, map[string]method{
		"Settle":        func(ctx context.Context, n int64) (int64, error) { return call(ctx, toLedger, "ledger.Commit", n) },
		"UpdateProfile": func(ctx context.Context, n int64) (int64, error) { return call(ctx, toLedger, "ledger.LookUp", n) },
		"Analyse":       func(ctx context.Context, n int64) (int64, error) { return call(ctx, toLedger, "ledger.LookUp", n) },
	}, grpc.ChainUnaryInterceptor(s.workers.workers))
	if err != nil {
		return s, err
	}

	toWallet, err := s.connect(guarded, "delegation to wallet", wallet)
	if err != nil {
		return s, err
	}
	deleg := make(slots, delegWorkers)
	methods := map[string]method{}
	for _, m := range []string{"Settle", "UpdateProfile", "Analyse"} {
		methods[m] = func(ctx context.Context, n int64) (int64, error) { return call(ctx, toWallet, "wallet."+m, n) }
	}
	delegation, err := s.start(guarded, "delegation", deleg, methods, grpc.ChainUnaryInterceptor(deleg.workers))
	if err != nil {
		return s, err
	}
	s.door, err = dial(delegation)
	if err == nil {
		s.stops = append(s.stops, func() { s.door.Close() })
	}
	return s, err
}

// start starts one service. The guard at its door has an engine of its own, which looks at what the service has to give out, and
// stands before the workers: a call that is shed takes none.
func (s *system) start(guarded bool, name string, scarce slots, methods map[string]method, opts ...grpc.ServerOption) (string, error) {
	if guarded {
		// As many calls as there are slots, and as many again that wait: the guard sheds so that about half of that is in use.
		n := 2 * cap(scarce)
		engine, err := cortex.New(cortex.Config{Name: name, Levels: levels, Limit: limit.Config{Min: n, Max: n}})
		if err != nil {
			return "", err
		}
		cfg := cortexgrpc.ServerConfig{Engine: engine}
		if name == "delegation" { // the first door says what calls are worth; the others hear it from the caller, which they trust
			cfg.Priority = func(_ context.Context, method string) cortex.Priority { return tiers[method] }
		}
		guard, err := cortexgrpc.NewServer(cfg)
		if err != nil {
			return "", err
		}
		opts = append(guard.ServerOptions(), opts...)
	}
	addr, stop, err := serve(name, methods, opts...)
	if err == nil {
		s.stops = append(s.stops, stop)
	}
	return addr, err
}

// connect makes a client of a service. Its guard sends the tier on, and follows the pressure that the service tells of.
func (s *system) connect(guarded bool, name, addr string) (*grpc.ClientConn, error) {
	var opts []grpc.DialOption
	if guarded {
		engine, err := cortex.New(cortex.Config{Name: name, Levels: levels,
			Timeout: timeout.Config{Min: 2 * time.Second}})
		if err != nil {
			return nil, err
		}
		guard, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: engine, SendPriority: true})
		if err != nil {
			return nil, err
		}
		opts = guard.DialOptions()
	}
	cc, err := dial(addr, opts...)
	if err == nil {
		s.stops = append(s.stops, func() { cc.Close() })
	}
	return cc, err
}
