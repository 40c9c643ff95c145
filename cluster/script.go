package cluster

import (
	"crypto/sha1" // the name that Redis gives a script
	_ "embed"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
)

//go:embed sync.lua
var syncSource string

//go:embed exact.lua
var exactSource string

var syncScript, exactScript = newScript(syncSource), newScript(exactSource)

// A script runs in Redis, which knows it by its hash once it has seen it.
type script struct{ source, hash string }

func newScript(source string) script {
	h := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(h[:])}
}

// A call is a script that is to run, or has run.
type call struct {
	script
	keys []string
	args []any
	cmd  *redis.Cmd
	// again says that it was sent a second time, whole.
	again bool
}

func (c *call) unknown() bool { return redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") }

const slots = 4 // that are kept: the one under way, the last, and room

// keysOf are the keys of a target, in one hash slot of a cluster.
func keysOf(prefix, target string) []string {
	tag := "{" + prefix + ":" + tagged(target) + "}:"
	keys := make([]string, 0, 2*slots+3)
	for _, kind := range []string{"slot", "seen"} {
		for i := range slots {
			keys = append(keys, tag+kind+":"+strconv.Itoa(i))
		}
	}
	return append(keys, tag+"circuit", tag+"probe", tag+"budget")
}

// tagged is a target's name without what would end a hash tag early.
func tagged(target string) string {
	return strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D").Replace(target)
}

// An order is what becomes of the right to probe.
type order string

const (
	orderNone  order = "-"
	orderWant  order = "want"
	orderRenew order = "renew" // a probe of this instance is under way
	orderPass  order = "pass"  // to who asked for it meanwhile; else it stays
	orderLeave order = "leave"
)

// A request is one exchange of one target.
type request struct {
	instance string
	seq      uint64
	interval time.Duration
	epoch    uint64
	order    order
	lease    time.Duration
	budget   cortex.BudgetReport
	fields   []field
}

func (r *request) args() []any {
	a := make([]any, 0, 14+2*len(r.fields))
	a = append(a, r.instance, r.seq, r.interval.Milliseconds(), min(r.epoch, mostSum), string(r.order), r.lease.Milliseconds())
	for _, x := range [...]float64{r.budget.Capacity, r.budget.Initial, r.budget.Income, r.budget.Reserve, r.budget.Earned, r.budget.Want, r.budget.Surplus} {
		a = append(a, milli(x))
	}
	a = append(a, len(r.fields))
	for _, f := range r.fields {
		a = append(a, f.name, f.value)
	}
	return a
}

// milli is a number of tokens in thousandths.
func milli(tokens float64) int64 {
	if !(tokens > 0) {
		return 0
	}
	return int64(math.Min(tokens, mostTokens) * 1000)
}

const mostTokens = 1e9

// An answer is what the store says of a target.
type answer struct {
	now     time.Duration // the server's clock
	slot    uint64        // under way
	junk    int
	mine    bool // the last slot has a report of this instance
	epoch   uint64
	owner   string
	lease   time.Duration // of the right to probe, from when the script ran; 0: others have it, or nobody
	granted float64       // tokens
	pool    float64
	last    slot
	text    int                  // bytes of it
	window  *exactWindow         // mode exact
	sofar   cortex.FleetOutcomes // in the slot under way
}

// An AnswerError tells that an answer is none.
type AnswerError struct{ What string }

func (e *AnswerError) Error() string {
	return "the answer of Redis is not that of this program's script: " + e.What + "; does another program use the same prefix?"
}

func parseAnswer(v any) (a answer, err error) {
	list, ok := v.([]any)
	if !ok || len(list) != 15 {
		return a, &AnswerError{fmt.Sprintf("%T of %d values", v, len(list))}
	}
	var n [15]int64
	for i, x := range list {
		if i == 5 || i == 9 {
			continue
		}
		if n[i], ok = x.(int64); !ok || n[i] < -1 || n[i] > mostSum {
			return a, &AnswerError{fmt.Sprintf("value %d", i)}
		}
	}
	owner, ok1 := list[5].(string)
	text, ok2 := list[9].(string)
	if !ok1 || !ok2 || len(text) > 1<<16 || n[0] < 0 || n[1] < 0 || n[2] < 0 || n[4] < 0 || min(n[7], n[8], n[10], n[11], n[12], n[13], n[14]) < 0 || n[6] > int64(time.Hour/time.Millisecond) {
		return a, &AnswerError{"values"}
	}
	if len(owner) > 64 {
		owner, n[2] = "", n[2]+1
	}
	a = answer{now: time.Duration(n[0]) * time.Millisecond, slot: uint64(n[1]), junk: int(min(n[2], 1e6)), mine: n[3] == 1, epoch: uint64(n[4]),
		owner: owner, lease: time.Duration(max(0, n[6])) * time.Millisecond, granted: float64(n[7]) / 1000, pool: float64(n[8]) / 1000, text: len(text)}
	if so := [...]int64{n[11], n[12], n[13], n[14]}; slices.Max(so[:]) <= mostEach {
		a.sofar = cortex.FleetOutcomes{Epoch: uint64(n[10]), Open: uint64(so[0]), Success: uint64(so[1]), Failure: uint64(so[2]), Patient: uint64(so[3])}
	}
	if text != "" {
		a.last = parseSlot(text)
		a.junk += a.last.junk
	}
	return a, nil
}
