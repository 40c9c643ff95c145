package cortex

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// Profile selects the law an engine follows.
type Profile uint8

const (
	// Adaptive is the default: the score, checks and reasons of the article under a law whose limits are learned.
	Adaptive Profile = iota
	// Article is the article's laws to the letter, for comparison and reproduction. It loses to a plain breaker; see the docs.
	Article
)

func (p Profile) String() string {
	switch p {
	case Adaptive:
		return "adaptive"
	case Article:
		return "article"
	}
	return fmt.Sprintf("Profile(%d)", uint8(p))
}

// MarshalText makes a profile its name in JSON.
func (p Profile) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// ParseProfile returns the profile of that name: "adaptive" or "article".
func ParseProfile(name string) (Profile, error) {
	switch name {
	case "adaptive":
		return Adaptive, nil
	case "article":
		return Article, nil
	}
	return 0, fmt.Errorf("cortex: unknown profile %q: use adaptive or article", name)
}

// ShedSignal says what drives shedding in the adaptive profile.
type ShedSignal uint8

const (
	// ShedByQueue sheds on the queue pressure Q, the default.
	ShedByQueue ShedSignal = iota
	// ShedByPressure sheds on the evidence gated by Q: equal in goodput, with a longer queue.
	ShedByPressure
)

func (s ShedSignal) String() string {
	if s == ShedByPressure {
		return "pressure"
	}
	return "queue"
}

// Defaults of a [Config].
const (
	DefaultLevels      = 10
	DefaultMaxRetries  = 3
	DefaultConcurrency = 100
	DefaultPermitLife  = 10 * time.Minute
	DefaultRemoteTrust = 0.5
)

// Config describes an engine. Its zero value is the documented default of every field; [New] checks the rest and names the
// field that cannot be used.
type Config struct {
	Name    string  // the target's name, in errors, events and logs
	Profile Profile // Adaptive
	Weights Weights // DefaultWeights
	Levels  int     // priority levels, 1 to 31; 10. N tiers want N+1

	MaxRetries     int  // retries after the original attempt; 3
	DisableRetries bool // no retries at all

	Backoff backoff.Config // the pressure law, base 500 ms, maximum 30 s
	Budget  budget.Config  // 0.1 token a success, 10 tokens, 0.2/s below 2
	Breaker breaker.Config // by profile; its fields Article and Rand are set by the engine
	Timeout timeout.Config // attempt timeout between 50 ms and 5 s, 1 s until 100 samples
	Limit   limit.Config   // bounds of the adaptive limit; its field Levels is set by the engine

	DisableTimeout bool // attempts are not cut by the guard

	// Deadline is the time a whole call may take, attempts and waits together, where its context has no deadline; 0 = no bound.
	Deadline time.Duration

	// Concurrency is what Q is measured against in the article profile, in attempts in flight; 100.
	Concurrency int

	// Queue, if set, tells the fill of a queue of the user's own: a worker queue, a connection pool. It is polled at most every
	// 10 ms outside every lock. Q is the greater of this and the engine's own. The adaptive profile sheds when it is over 80 %.
	Queue func() (current, capacity float64)

	ShedSignal ShedSignal // ShedByQueue

	// RemoteTrust bounds what a target's own guard may make this one do: the share of its shed fraction that is followed here
	// before sending, in [0,1]; 0.5. DistrustRemote ignores it.
	RemoteTrust    float64
	DistrustRemote bool

	// Classify makes a class of an attempt's error; [Classify].
	Classify func(error) Class

	// OnStateChange and OnDecision are called outside every lock, in order, never two at a time for one engine. They run on the
	// goroutine of a caller, who waits for them, and who may deliver what others have caused meanwhile: they should hand over
	// and return. A panic in them is caught and logged. They may use the engine. Where they are slower than events come, those beyond
	// 1,024 are dropped and counted.
	OnStateChange func(StateChange)
	OnDecision    func(DecisionEvent)

	Logger *slog.Logger // state changes and listener panics; nil = quiet

	// PermitLife bounds how long an attempt that never returns counts as in flight: between one and two PermitLife; 10 min.
	PermitLife time.Duration

	// Stripes is the number of counter stripes, a power of two up to 8; 0 = by GOMAXPROCS. Nothing that is decided depends on it.
	// 1 where one goroutine makes all the calls, as a simulator does, or where memory matters more than contention.
	Stripes int

	// Now is the engine's clock: time since any fixed moment. It should be monotonic; time that goes back is no time that
	// passed. nil = the process's monotonic clock.
	Now func() time.Duration
	// Rand seeds the engine's own generator, once, in New. nil = the process's random source.
	Rand rand.Source
}

// normalize fills in defaults and checks everything.
func (c Config) normalize() (Config, error) {
	if c.Profile > Article {
		return c, &ConfigError{Field: "Profile", Value: c.Profile, Want: "Adaptive or Article"}
	}
	if c.ShedSignal > ShedByPressure {
		return c, &ConfigError{Field: "ShedSignal", Value: uint8(c.ShedSignal), Want: "ShedByQueue or ShedByPressure"}
	}
	if c.Weights == (Weights{}) {
		c.Weights = DefaultWeights
	}
	if err := c.Weights.validate(); err != nil {
		return c, err
	}
	if c.Levels == 0 {
		c.Levels = DefaultLevels
	}
	if c.Levels < 1 || c.Levels > limit.MaxLevels {
		return c, &ConfigError{Field: "Levels", Value: c.Levels, Want: fmt.Sprintf("from 1 to %d", limit.MaxLevels)}
	}
	switch {
	case c.MaxRetries < 0 || c.MaxRetries > 1000:
		return c, &ConfigError{Field: "MaxRetries", Value: c.MaxRetries, Want: "from 0 (the default, 3) to 1000; DisableRetries for none"}
	case c.DisableRetries && c.MaxRetries > 0:
		return c, &ConfigError{Field: "MaxRetries", Value: c.MaxRetries, Want: "0 together with DisableRetries"}
	case c.MaxRetries == 0 && !c.DisableRetries:
		c.MaxRetries = DefaultMaxRetries
	}
	if c.Deadline < 0 {
		return c, &ConfigError{Field: "Deadline", Value: c.Deadline, Want: "0 (no bound) or more"}
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.Concurrency < 1 {
		return c, &ConfigError{Field: "Concurrency", Value: c.Concurrency, Want: "at least 1"}
	}
	if math.IsNaN(c.RemoteTrust) || c.RemoteTrust < 0 || c.RemoteTrust > 1 {
		return c, &ConfigError{Field: "RemoteTrust", Value: c.RemoteTrust, Want: "from 0 (the default, 0.5) to 1; DistrustRemote for none"}
	}
	if c.RemoteTrust == 0 && !c.DistrustRemote {
		c.RemoteTrust = DefaultRemoteTrust
	}
	if c.PermitLife == 0 {
		c.PermitLife = DefaultPermitLife
	}
	if c.PermitLife < time.Second {
		return c, &ConfigError{Field: "PermitLife", Value: c.PermitLife, Want: "at least 1s"}
	}
	if c.Stripes < 0 || c.Stripes > maxStripes || c.Stripes&(c.Stripes-1) != 0 {
		return c, &ConfigError{Field: "Stripes", Value: c.Stripes, Want: fmt.Sprintf("a power of two up to %d, or 0 (by the number of processors)", maxStripes)}
	}
	if c.Classify == nil {
		c.Classify = Classify
	}
	if c.Now == nil {
		c.Now = monotonic
	} else {
		c.Now = steady(c.Now)
	}
	if c.Rand == nil {
		c.Rand = processRandom{}
	}
	c.Breaker.Article = c.Profile == Article
	c.Limit.Levels = c.Levels
	var err error
	if c.Backoff, err = c.Backoff.Normalize(); err != nil {
		return c, part("Backoff", err)
	}
	if c.Budget, err = c.Budget.Normalize(); err != nil {
		return c, part("Budget", err)
	}
	if c.Breaker, err = c.Breaker.Normalize(); err != nil {
		return c, part("Breaker", err)
	}
	for _, f := range [...]struct {
		name string
		d    time.Duration
	}{{"Timeout.Min", c.Timeout.Min}, {"Timeout.Max", c.Timeout.Max}, {"Timeout.Bootstrap", c.Timeout.Bootstrap}} {
		if f.d > 0 && f.d < time.Millisecond { // a bare 5 that was meant as seconds is 5 ns
			return c, &ConfigError{Field: f.name, Value: f.d, Want: "at least 1ms; was the unit forgotten?"}
		}
	}
	if c.Timeout, err = c.Timeout.Normalize(); err != nil {
		return c, part("Timeout", err)
	}
	if c.Limit, err = c.Limit.Normalize(); err != nil {
		return c, part("Limit", err)
	}
	return c, nil
}

func part(field string, err error) error { return &ConfigError{Field: field, Err: err} }

// WithDefaults returns the configuration with every default filled in, as [New] uses it, or the [ConfigError] that New
// would give.
func (c Config) WithDefaults() (Config, error) { return c.normalize() }
