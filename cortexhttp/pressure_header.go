package cortexhttp

import (
	"math"
	"strings"

	"github.com/seed-a29ca62a/cortex"
)

// Reported is what a guard said of itself in [HeaderPressure].
type Reported struct {
	CPS   float64 // the composite pressure score, in [0,1]
	Q     float64 // the queue pressure, in [0,1]
	Shed  float64 // the share of the offered calls that it sheds, in [0,1]; see [cortex.Engine.ObserveRemote]
	State cortex.State
}

const (
	qParameter     = ";q="
	shedParameter  = ";shed="
	stateParameter = ";state="
)

// FormatPressure is the value of [HeaderPressure] for a snapshot: "0.4213;q=0.6100;shed=0.1200;state=ELEVATED". Numbers
// outside [0,1] become the nearer end, those that are none 0.
func FormatPressure(p cortex.Pressure) string {
	b := make([]byte, 0, len("0.0000;q=0.0000;shed=0.0000;state=PRESSURED"))
	b = appendShare(b, p.CPS)
	b = appendShare(append(b, qParameter...), p.Signals.Q)
	b = appendShare(append(b, shedParameter...), p.Shed)
	b = append(append(b, stateParameter...), min(p.State, cortex.Emergency).String()...)
	return string(b)
}

// ParsePressure reads a value of [HeaderPressure], whole or not at all: every part, in order, its numbers plain decimals
// from 0 to 1 with at most six places, nothing else. It does not say whether the sender is to be believed.
func ParsePressure(value string) (Reported, bool) {
	var r Reported
	cps, rest, ok := cutShare(value)
	if !ok {
		return Reported{}, false
	}
	if rest, ok = strings.CutPrefix(rest, qParameter); !ok {
		return Reported{}, false
	}
	if r.Q, rest, ok = cutShare(rest); !ok {
		return Reported{}, false
	}
	if rest, ok = strings.CutPrefix(rest, shedParameter); !ok {
		return Reported{}, false
	}
	if r.Shed, rest, ok = cutShare(rest); !ok {
		return Reported{}, false
	}
	if rest, ok = strings.CutPrefix(rest, stateParameter); !ok {
		return Reported{}, false
	}
	for s := cortex.Healthy; s <= cortex.Emergency; s++ {
		if rest == s.String() {
			r.CPS, r.State = cps, s
			return r, true
		}
	}
	return Reported{}, false
}

// appendShare writes a number of [0,1] with four places.
func appendShare(b []byte, v float64) []byte {
	n := int(math.Round(share(v) * 1e4))
	return append(b, byte('0'+n/10_000), '.', byte('0'+n/1000%10), byte('0'+n/100%10), byte('0'+n/10%10), byte('0'+n%10))
}

// share is v as a number of [0,1]: outside of it the nearer end, 0 for NaN.
func share(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, 1)
}

// cutShare reads a number of [0,1] off the front of s.
func cutShare(s string) (v float64, rest string, ok bool) {
	if s == "" || (s[0] != '0' && s[0] != '1') {
		return 0, "", false
	}
	n, scale := int(s[0]-'0'), 1
	s = s[1:]
	if s != "" && s[0] == '.' {
		places := digits(s[1:])
		if places < 1 || places > 6 {
			return 0, "", false
		}
		for _, d := range []byte(s[1 : 1+places]) {
			n, scale = 10*n+int(d-'0'), 10*scale
		}
		s = s[1+places:]
	}
	if n > scale {
		return 0, "", false
	}
	return float64(n) / float64(scale), s, true
}
