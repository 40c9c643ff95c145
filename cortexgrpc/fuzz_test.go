package cortexgrpc

import (
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
)

// A pushback is a number of decimal digits, however long, or forbids the retry.
func FuzzPushback(f *testing.F) {
	for _, s := range []string{"", "0", "-1", "+1", "7000", "007", "1.5", "1e3", " 1", "1 ", "9223372036854", "9223372036855",
		"99999999999999999999999999999999", "0x10", "１", "\x00", "soon"} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, s string, twice bool) {
		md := metadata.MD{metadataPushback: {s}}
		if twice {
			md[metadataPushback] = append(md[metadataPushback], s)
		}
		want, valid := time.Duration(0), s != "" && strings.Trim(s, "0123456789") == "" && !twice
		if valid {
			n, _ := new(big.Int).SetString(s, 10)
			n.Mul(n, big.NewInt(int64(time.Millisecond)))
			if want = math.MaxInt64 / time.Millisecond * time.Millisecond; n.IsInt64() {
				want = min(want, time.Duration(n.Int64()))
			}
		}
		wait, there, forbidden := pushback(md)
		if wait != want || there != valid || forbidden == valid {
			t.Errorf("%q: %v, %v, %v; want %v, %v", s, wait, there, forbidden, want, valid)
		}
		c := ClassOf(status.New(codes.Unavailable, ""), md)
		if c.Outcome != cortex.Failed || c.Retryable != valid || c.RetryAfter != want {
			t.Errorf("%q: %+v", s, c)
		}
	})
}

// Whatever a trailer holds, a class is one of those there are, and no hint is negative.
func FuzzClassOf(f *testing.F) {
	f.Add(uint32(14), "no", "1", "CIRCUIT_OPEN", []byte{})
	f.Add(uint32(8), "grpc: received message larger than max (1 vs. 0)", "-1", "SHED_LOW_PRIORITY", []byte("\x08\x0e\x12\x00"))
	st, _ := rejectionStatus(&cortex.Rejection{Target: "x", Reason: cortex.ReasonShed, RetryAfter: time.Second}, false).WithDetails()
	f.Add(uint32(14), "", "", "", []byte(st.Message()))
	f.Fuzz(func(t *testing.T, code uint32, text, wait, reason string, detail []byte) {
		p := status.New(codes.Code(code), text).Proto()
		if code != 0 {
			p = rejectionStatus(&cortex.Rejection{Target: text, Reason: cortex.ReasonShed, RetryAfter: time.Second}, false).Proto()
			p.Code = int32(code)
			for _, d := range p.Details {
				d.Value = append(d.Value, detail...)
			}
		}
		c := ClassOf(status.FromProto(p), metadata.MD{metadataPushback: {wait}, MetadataReason: {reason}})
		if c.RetryAfter < 0 || c.Outcome > cortex.Throttled || c.Retryable && c.Outcome == cortex.Success {
			t.Errorf("%+v", c)
		}
	})
}

func TestDistrusted(t *testing.T) {
	for why, want := range map[string]bool{
		"tls: failed to verify certificate: x509: certificate signed by unknown authority": true,
		"x509: certificate has expired or is not yet valid":                                true,
		"remote error: tls: bad certificate":                                               true,
		"remote error: tls: unknown certificate authority":                                 true,
		"EOF": false, "read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer": false,
		"context deadline exceeded": false, "remote error: tls: internal error": false,
	} {
		if got := distrusted(why); got != want {
			t.Errorf("%q: %v", why, got)
		}
	}
}
