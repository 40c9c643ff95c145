// Package window keeps sliding windows over outcomes and latencies: how many attempts succeeded, failed, timed out or
// were throttled in the last 1, 2, 5, 15 and 60 seconds, and the latency quantiles of the same spans.
//
//	w := window.New()
//	w.Add(now, window.Counts{Success: 1})
//	w.AddLatency(now, window.Bucket(latency), 1)
//	span := w.Shortest(50) // react as fast as the traffic allows
//	failed := w.Counts(span).Failures()
//	p99, ok := w.Quantile(w.ShortestLatencies(200), 0.99)
//
// Nothing is ever reset at an interval's edge and nothing is rescanned: time is cut into slots, a running sum a span holds
// what its slots hold, and a slot that falls out of a span is subtracted from that span's sum. Reading counts is one copy,
// a quantile is one scan over a histogram.
//
// All times are durations since one arbitrary origin on a monotonic axis, passed in by the caller. Nothing here is safe for
// concurrent use: the owner's mutex guards it.
package window
