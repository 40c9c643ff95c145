package cortexhttp

import (
	"math"
	"net/http"
	"strings"
	"testing"
)

func TestParseAttempt(t *testing.T) {
	for _, c := range []struct {
		value            string
		attempt, retries int
		ok               bool
	}{
		{"0;retries=3", 0, 3, true},
		{"1;retries=3", 1, 3, true},
		{"1000;retries=1000", 1000, 1000, true},
		{"0;retries=0", 0, 0, true},
		{"2", 2, 0, true},
		{"", 0, 0, false},
		{"1001;retries=3", 0, 0, false},
		{"1;retries=1001", 0, 0, false},
		{"-1;retries=3", 0, 0, false},
		{"+1;retries=3", 0, 0, false},
		{"1;retries=-3", 0, 0, false},
		{"01;retries=3", 0, 0, false},
		{"1;retries=03", 0, 0, false},
		{"1.5;retries=3", 0, 0, false},
		{"1e2;retries=3", 0, 0, false},
		{"1;retries=", 0, 0, false},
		{"1;retries", 0, 0, false},
		{"1;", 0, 0, false},
		{";retries=3", 0, 0, false},
		{"1;RETRIES=3", 0, 0, false},
		{"1;retries=3;retries=4", 0, 0, false},
		{"1;retries=3 ", 0, 0, false},
		{" 1;retries=3", 0, 0, false},
		{"1; retries=3", 0, 0, false},
		{"1,2;retries=3", 0, 0, false},
		{"१;retries=3", 0, 0, false}, // digits of another script
		// These wrap to small numbers in 32 or 64 bits.
		{"4294967296;retries=3", 0, 0, false},
		{"18446744073709551617;retries=3", 0, 0, false},
		{"1;retries=18446744073709551617", 0, 0, false},
		{strings.Repeat("9", 1<<16), 0, 0, false},
		{strings.Repeat("0", 1<<16), 0, 0, false},
	} {
		attempt, retries, ok := ParseAttempt(c.value)
		if attempt != c.attempt || retries != c.retries || ok != c.ok {
			t.Errorf("ParseAttempt(%.40q) = %d, %d, %v; want %d, %d, %v", c.value, attempt, retries, ok, c.attempt, c.retries, c.ok)
		}
	}
}

func TestFormatAttemptClamps(t *testing.T) {
	for _, c := range []struct {
		attempt, retries int
		want             string
	}{
		{0, 3, "0;retries=3"}, {3, 0, "3;retries=0"}, {-1, -1, "0;retries=0"}, {math.MinInt, math.MaxInt, "0;retries=1000"},
		{1001, 1000, "1000;retries=1000"},
	} {
		if got := FormatAttempt(c.attempt, c.retries); got != c.want {
			t.Errorf("FormatAttempt(%d, %d) = %q, want %q", c.attempt, c.retries, got, c.want)
		}
	}
}

func TestSingleRefusesRepeatedFields(t *testing.T) {
	h := http.Header{}
	if v, ok := single(h, HeaderAttempt); ok {
		t.Errorf("absent field read as %q", v)
	}
	h.Add(HeaderAttempt, "1;retries=3")
	if v, ok := single(h, HeaderAttempt); !ok || v != "1;retries=3" {
		t.Errorf("single = %q, %v", v, ok)
	}
	h.Add(HeaderAttempt, "0;retries=0")
	if v, ok := single(h, HeaderAttempt); ok {
		t.Errorf("field sent twice read as %q", v)
	}
}

func FuzzParseAttempt(f *testing.F) {
	for _, s := range []string{"0;retries=3", "1", "1000;retries=1000", "", "-1", "18446744073709551617;retries=1", "1;retries=;", "\xff;retries=1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		attempt, retries, ok := ParseAttempt(s)
		if attempt < 0 || attempt > maxAttempts || retries < 0 || retries > maxAttempts {
			t.Fatalf("%q: %d, %d out of range", s, attempt, retries)
		}
		if !ok {
			if attempt != 0 || retries != 0 {
				t.Fatalf("%q: numbers %d, %d beside not ok", s, attempt, retries)
			}
			return
		}
		want := FormatAttempt(attempt, retries)
		if s != want && s+retriesParameter+"0" != want {
			t.Fatalf("%q accepted, but written %q", s, want)
		}
	})
}
