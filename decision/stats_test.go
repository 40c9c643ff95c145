package decision

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

func TestStatsCountWhatBecameOfRequests(t *testing.T) {
	d := newHandler(t)
	for _, r := range []struct{ method, body string }{
		{"Admit", `{"target":"a","priority":5}`}, {"Admit", `{"target":"a","priority":5}`}, {"Admit", `{"target":"a","priority":-5}`},
		{"Admit", `{"target":`}, {"List", `{}`}, {"List", `{"no_such_field":1}`}, {"Report", `{"token":"x","outcome":"success"}`},
	} {
		d.serve(r.method, []byte(r.body))
	}
	d.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "http://pages.example/cortex.v1.DecisionService/List", nil))
	s, ok := StatsOf(d.Handler)
	if !ok {
		t.Fatal("no stats")
	}
	got := map[string]uint64{}
	for i, counts := range s.Requests {
		for j, n := range counts {
			if n > 0 {
				got[Methods[i]+" "+Results[j]] = n
			}
		}
	}
	want := map[string]uint64{"Admit ok": 2, "Admit invalid_argument": 1, "Admit malformed": 1, "List ok": 1, "List malformed": 1, "Report invalid_argument": 1}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%s: %d, want %d", k, got[k], n)
		}
	}
	if s.Tokens != 2 || s.Full != 0 || s.Expired != 0 || s.Watches != 0 || s.Refused[1] != 1 {
		t.Errorf("%+v", s)
	}
	if !slices.Equal(Methods, []string{"Admit", "Report", "ReportBatch", "Decide", "Watch", "List"}) {
		t.Errorf("methods %q", Methods)
	}
	if _, ok := StatsOf(http.NotFoundHandler()); ok {
		t.Error("stats of another handler")
	}
}
