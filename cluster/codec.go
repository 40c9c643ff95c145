package cluster

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/window"
)

const (
	mostCount = 1e12 // of anything that one guard reports
	mostSum   = 1e15 // of anything in the store; a float64, which is what a script counts in, is exact up to 9e15
	// mostEach is what a guard counts in an interval, at most: more is junk.
	mostEach = 1e8
)

// A field of a slot. Those of x stand whatever the circuit does, the others are of the slot's epoch.
type field struct {
	name  string
	value uint64
}

// fieldsOf lists what is not zero in a report. Areas are in µs.
func fieldsOf(list []field, r *cortex.FleetReport, phase time.Duration) []field {
	add := func(name string, n uint64) {
		if n > 0 {
			list = append(list, field{name, min(n, mostCount)})
		}
	}
	add("xg", 1)
	add("xp", uint64(max(0, phase.Milliseconds())))
	add("xn", uint64(max(0, r.InFlight)))
	add("xa", r.Asked)
	add("xA", uint64(max(0, r.Area.Microseconds())))
	for p, n := range r.Offered {
		add(offeredName[p], n)
	}
	add("o", r.Open)
	add("q", r.Probing)
	add("s", r.Success)
	add("f", r.Failure)
	add("t", r.Timeout)
	add("h", r.Throttled)
	add("p", r.Patient)
	add("c", r.Cut)
	add("E", uint64(max(0, r.ErrorArea.Microseconds())))
	for b, n := range r.Latency {
		add(latencyName[b], n)
	}
	return list
}

var (
	offeredName = names[[limit.MaxLevels + 1]string]("x")
	latencyName = names[[window.Buckets]string]("l")
)

func names[A [limit.MaxLevels + 1]string | [window.Buckets]string](prefix string) (a A) {
	for i := range len(a) {
		a[i] = prefix + strconv.Itoa(i)
	}
	return a
}

// A slot is what all guards reported in one interval.
type slot struct {
	cortex.FleetReport
	phase time.Duration // when in the slot the reports ended, added up
	junk  int           // fields that are none
}

// parseSlot reads the names and values of a slot, separated by blanks. Fields that are none are counted and ignored; a number that is out of any
// proportion makes all of them junk.
func parseSlot(text string) (s slot) {
	for text != "" {
		var name, value string
		name, text, _ = strings.Cut(text, " ")
		value, text, _ = strings.Cut(text, " ")
		if name == "#" {
			continue
		}
		n, ok := parseCount(value)
		if !ok || !s.set(name, n) {
			s.junk++
		}
	}
	most := uint64(mostEach) * s.Guards
	plausible := s.Guards > 0 && s.Guards <= 1e6 && s.Open <= s.Guards && s.Probing <= s.Guards && s.Patient <= s.Timeout && s.Cut <= s.Timeout
	for _, n := range [...]uint64{uint64(s.InFlight), s.Asked, s.Success, s.Failure, s.Timeout, s.Throttled} {
		plausible = plausible && n <= most
	}
	for _, n := range s.Offered {
		plausible = plausible && n <= most
	}
	for _, n := range s.Latency {
		plausible = plausible && n <= most
	}
	if !plausible {
		return slot{junk: s.junk + 1}
	}
	return s
}

// parseCount reads a whole number from 0 to mostSum, written as a script writes it.
func parseCount(s string) (uint64, bool) {
	if s == "" || len(s) > 16 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n := uint64(0)
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, n <= mostSum
}

// set takes in a field; it reports whether there is one of that name.
func (s *slot) set(name string, n uint64) bool {
	micro := time.Duration(min(n, math.MaxInt64/1000/4)) * time.Microsecond
	switch name {
	case "e":
		s.Epoch = n
	case "xg":
		s.Guards = n
	case "xp":
		s.phase = time.Duration(min(n, mostCount)) * time.Millisecond
	case "xn":
		s.InFlight = int64(n)
	case "xa":
		s.Asked = n
	case "xA":
		s.Area = micro
	case "o":
		s.Open = n
	case "q":
		s.Probing = n
	case "s":
		s.Success = n
	case "f":
		s.Failure = n
	case "t":
		s.Timeout = n
	case "h":
		s.Throttled = n
	case "p":
		s.Patient = n
	case "c":
		s.Cut = n
	case "E":
		s.ErrorArea = micro
	default:
		if len(name) < 2 {
			return false
		}
		i, ok := parseCount(name[1:])
		switch {
		case ok && name[0] == 'x' && i < uint64(len(s.Offered)):
			s.Offered[i] = n
		case ok && name[0] == 'l' && i < uint64(len(s.Latency)):
			s.Latency[i] = n
		default:
			return false
		}
	}
	return true
}
