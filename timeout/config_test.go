package timeout

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestNormalizeFillsDefaults(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		in, want Config
	}{
		{"zero", Config{}, Config{50 * ms, 5 * time.Second, time.Second, 100, 2}},
		{"all set", Config{1, 2, 1, 1, 10}, Config{1, 2, 1, 1, 10}},
		{"bootstrap yields to a short max", Config{Max: 500 * ms}, Config{50 * ms, 500 * ms, 500 * ms, 100, 2}},
		{"min yields too", Config{Max: 20 * ms}, Config{20 * ms, 20 * ms, 20 * ms, 100, 2}},
		{"bootstrap yields to a long min", Config{Min: 2 * time.Second}, Config{2 * time.Second, 5 * time.Second, 2 * time.Second, 100, 2}},
		{"all equal", Config{Min: 7, Max: 7, Bootstrap: 7}, Config{7, 7, 7, 100, 2}},
		{"longest", Config{Max: math.MaxInt64}, Config{50 * ms, math.MaxInt64, time.Second, 100, 2}},
	} {
		got, err := c.in.Normalize()
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
		if again, err := got.Normalize(); err != nil || again != got {
			t.Errorf("%s: normalized again: %+v, %v", c.name, again, err)
		}
	}
}

// F06: wrong numbers accepted silently.
func TestNormalizeNamesTheFieldThatIsWrong(t *testing.T) {
	for _, c := range []struct {
		in   Config
		want []string // start of each message, in order
	}{
		{Config{Bootstrap: 10 * time.Second}, []string{"Bootstrap: 10s is above Max 5s; "}},
		{Config{Min: 10 * time.Second}, []string{"Min: 10s is above Max 5s; "}},
		{Config{Min: time.Second, Bootstrap: time.Millisecond}, []string{"Bootstrap: 1ms is below Min 1s; "}},
		{Config{Min: -1}, []string{"Min: -1ns is negative; "}},
		{Config{Max: -1}, []string{"Max: -1ns is negative; "}},
		{Config{Bootstrap: math.MinInt64}, []string{"Bootstrap: -2562047h47m16.854775808s is negative; "}},
		{Config{MinSamples: -1}, []string{"MinSamples: -1 is below 1; "}},
		{Config{Multiplier: 0.5}, []string{"Multiplier: 0.5 is not in [1, 10]; "}},
		{Config{Multiplier: -2}, []string{"Multiplier: -2 is not in [1, 10]; "}},
		{Config{Multiplier: 10.1}, []string{"Multiplier: 10.1 is not in [1, 10]; "}},
		{Config{Multiplier: math.NaN()}, []string{"Multiplier: NaN is not in [1, 10]; "}},
		{Config{Multiplier: math.Inf(1)}, []string{"Multiplier: +Inf is not in [1, 10]; "}},
		{Config{Multiplier: math.Inf(-1)}, []string{"Multiplier: -Inf is not in [1, 10]; "}},
		{Config{Min: -1, MinSamples: -1, Multiplier: 99}, []string{"Min: ", "MinSamples: ", "Multiplier: "}},
	} {
		_, err := c.in.Normalize()
		if err == nil {
			t.Errorf("%+v: accepted", c.in)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("%+v: %q, want %d messages", c.in, lines, len(c.want))
			continue
		}
		for i, line := range lines {
			if !strings.HasPrefix(line, c.want[i]) {
				t.Errorf("%+v: %q, want %q first", c.in, line, c.want[i])
			}
		}
		var ce *ConfigError
		if !errors.As(err, &ce) || !strings.HasPrefix(c.want[0], ce.Field+":") {
			t.Errorf("%+v: %v is no ConfigError of the field", c.in, err)
		}
		if tm, err2 := New(c.in); tm != nil || err2 == nil {
			t.Errorf("%+v: New = %v, %v", c.in, tm, err2)
		}
	}
}
