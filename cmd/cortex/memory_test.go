package main

import "testing"

func TestMemoryBound(t *testing.T) {
	for text, want := range map[string]int64{"max\n": 0, "268435456\n": 256 << 20, "9223372036854771712\n": 0, "": 0, "-1": 0, "0": 0, "junk": 0} {
		if n, ok := memoryBound(text); ok != (want > 0) || ok && n != want {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
	}
}
