package cluster

import (
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

const (
	mostMembers = 5_000  // of one instance in an interval
	mostTold    = 20_000 // members of all in an interval, of each kind
)

// Kinds of members, by how an attempt ended.
const (
	kindSuccess       = 's'
	kindFailure       = 'f'
	kindTimeout       = 't'
	kindPatient       = 'p' // a timeout that is evidence for the circuit
	kindCut           = 'c' // one that the guard's own timeout ended
	kindPatientAndCut = 'b'
	kindThrottled     = 'h'
)

func exactKeys(keys []string) []string {
	tag := keys[0][:strings.LastIndexByte(keys[0], '}')+1]
	return []string{tag + ":ok", tag + ":failed"}
}

// takeMembers moves the outcomes of a report into members, one a call: successes, and all others. Where there is no room for all, it is
// successes that are dropped first: failures are the fewer, and what counts.
func takeMembers(instance string, seq uint64, r *cortex.FleetReport) (good, bad []string, dropped uint64) {
	head := instance + "." + strconv.FormatUint(seq, 36) + "."
	tail := "." + strconv.FormatUint(r.Epoch, 36) + "."
	n := 0
	add := func(list *[]string, kind byte, bucket int, count uint64) {
		room := min(count, uint64(mostMembers-n))
		dropped += count - room
		for range room {
			*list = append(*list, head+strconv.FormatInt(int64(n), 36)+tail+string(kind)+strconv.Itoa(bucket))
			n++
		}
	}
	r.Patient, r.Cut = min(r.Patient, r.Timeout), min(r.Cut, r.Timeout)
	both := min(r.Patient, r.Cut)
	add(&bad, kindFailure, 0, r.Failure)
	add(&bad, kindPatientAndCut, 0, both)
	add(&bad, kindPatient, 0, r.Patient-both)
	add(&bad, kindCut, 0, r.Cut-both)
	add(&bad, kindTimeout, 0, r.Timeout-max(r.Patient, r.Cut))
	add(&bad, kindThrottled, 0, r.Throttled)
	left := r.Success
	for b, k := range r.Latency {
		k = min(k, left)
		left -= k
		add(&good, kindSuccess, b, k)
	}
	add(&good, kindSuccess, noBucket, left) // their latencies are still under way
	r.Success, r.Failure, r.Timeout, r.Throttled, r.Patient, r.Cut = 0, 0, 0, 0, 0, 0
	clear(r.Latency[:])
	return good, bad, dropped
}

const noBucket = 999

func exactArgs(instance string, seq uint64, interval, window time.Duration, good, bad []string) []any {
	a := make([]any, 0, 6+len(good)+len(bad))
	a = append(a, instance, seq, interval.Milliseconds(), window.Milliseconds(), mostTold, len(good))
	for _, m := range good {
		a = append(a, m)
	}
	for _, m := range bad {
		a = append(a, m)
	}
	return a
}

// An exactWindow is what the members say.
type exactWindow struct {
	slot       uint64
	ok, failed uint64 // in the whole window
	junk       int
	outcomes   cortex.FleetReport // of the last slot
}

// parseExact reads the answer of the exact script; the outcomes are those of the newest epoch, which is at least the one given.
func parseExact(v any, epoch uint64) (w exactWindow, err error) {
	list, ok := v.([]any)
	if !ok || len(list) < 4 || len(list) > 4+2*mostTold {
		return w, &AnswerError{"not a window"}
	}
	var n [4]int64
	for i := range n {
		if n[i], ok = list[i].(int64); !ok || n[i] < 0 || n[i] > mostSum {
			return w, &AnswerError{"value " + strconv.Itoa(i)}
		}
	}
	w.slot, w.ok, w.failed = uint64(n[1]), uint64(n[2]), uint64(n[3])
	w.outcomes.Epoch = epoch
	for _, x := range list[4:] {
		s, _ := x.(string)
		var r cortex.FleetReport
		if !parseMember(s, &r) || r.Epoch > epoch+1<<32 {
			w.junk++
			continue
		}
		w.outcomes.Add(&r)
	}
	return w, nil
}

// parseMember reads instance.exchange.number.epoch.kind+bucket.
func parseMember(s string, r *cortex.FleetReport) bool {
	parts := strings.SplitN(s, ".", 6)
	if len(parts) != 5 || len(s) > 64 || len(parts[4]) < 2 {
		return false
	}
	epoch, err := strconv.ParseUint(parts[3], 36, 50)
	b, ok := parseCount(parts[4][1:])
	if err != nil || !ok {
		return false
	}
	r.Epoch = epoch
	switch parts[4][0] {
	case kindSuccess:
		r.Success = 1
		switch {
		case b < uint64(len(r.Latency)):
			r.Latency[b] = 1
		case b != noBucket:
			return false
		}
	case kindFailure:
		r.Failure = 1
	case kindTimeout:
		r.Timeout = 1
	case kindPatient:
		r.Timeout, r.Patient = 1, 1
	case kindCut:
		r.Timeout, r.Cut = 1, 1
	case kindPatientAndCut:
		r.Timeout, r.Patient, r.Cut = 1, 1, 1
	case kindThrottled:
		r.Throttled = 1
	default:
		return false
	}
	return true
}
