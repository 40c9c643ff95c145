package cortexhttp

import (
	"encoding/json"
	"math"
	"net/http"
	"time"
)

// maxMetaField bounds X-Business-Use-Case-Usage: 32 accounts with a few use cases each are below 8 KiB.
const maxMetaField = 16 << 10

// metaUsage reads the field in which Meta's business APIs (WhatsApp, Marketing, Instagram, Pages) tell how much of a quota is
// used: JSON, by account and use case, with the minutes until access is regained, 0 while it is not lost. The largest counts:
// which account the request was for cannot be known here.
func metaUsage(h http.Header, _ time.Time) (wait time.Duration, ok bool) {
	for _, v := range h["X-Business-Use-Case-Usage"] {
		if len(v) > maxMetaField {
			continue
		}
		var usage map[string][]struct {
			Minutes json.Number `json:"estimated_time_to_regain_access"`
		}
		if json.Unmarshal([]byte(v), &usage) != nil {
			continue
		}
		for _, cases := range usage {
			for _, c := range cases {
				if m, err := c.Minutes.Float64(); err == nil && m > 0 {
					wait, ok = max(wait, minutes(m)), true
				}
			}
		}
	}
	return wait, ok
}

// minutes is m minutes, rounded up to a second and saturated; m > 0.
func minutes(m float64) time.Duration {
	s := math.Ceil(m * 60)
	if s >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s) * time.Second
}
