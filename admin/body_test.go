package admin

import (
	"encoding/json"
	"slices"
	"testing"
)

// What is accepted means the same to the standard library's own reading, and nothing else is in it.
func FuzzParseWord(f *testing.F) {
	for _, s := range []string{`{"state":"open"}`, `{"state":"shut"}`, `{"state":"open","state":"closed"}`, `{}`, ``, `{"State":"open"}`,
		`{"state":"\u006fpen"}`, `{"state":"open"} {}`, `[{"state":"open"}]`, `{"state":"open",}`, `{"st\u0061te":"auto"}`} {
		f.Add([]byte(s))
	}
	values := []string{"open", "closed", "auto"}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := parseWord(body, "state", values)
		var all map[string]any
		bad := json.Unmarshal(body, &all)
		switch {
		case err != nil:
			if len(err.Error()) > 400 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		case bad != nil || len(all) != 1 || all["state"] != got || !slices.Contains(values, got):
			t.Errorf("%q is taken for %q; the library reads %v, %v", body, got, all, bad)
		}
		if _, err := parseWord(body, "", nil); err == nil && len(body) > 0 && json.Valid(body) && len(all) != 0 {
			t.Errorf("%q is taken for nothing", body)
		}
	})
}
