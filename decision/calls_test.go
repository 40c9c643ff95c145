package decision

import (
	"testing"
	"time"
)

func TestAdmitAndReport(t *testing.T) {
	w := newWorld(t)
	a := w.ask("Admit", `{"target":"whatsapp","priority":5}`)
	if a["allowed"] != true || a["reason"] != "" || a["floor"] != 0.0 || a["timeout_ms"] != 1000.0 || a["token"] == "" || a["circuit"] != "closed" ||
		a["retry_after_ms"] != 0.0 || a["token_life_ms"] != 600000.0 {
		t.Errorf("%v", a)
	}
	if n := w.engine("whatsapp").Pressure().InFlight; n != 1 {
		t.Errorf("%d in flight", n)
	}
	w.add(100 * time.Millisecond)
	token := a["token"].(string)
	if r := w.ask("Report", `{"token":"`+token+`","outcome":"success"}`); r["counted"] != true || r["reason"] != "" {
		t.Errorf("%v", r)
	}
	if r := w.ask("Report", `{"token":"`+token+`","outcome":"failure"}`); r["counted"] != false || r["reason"] != "TOKEN_UNKNOWN" {
		t.Errorf("reported again: %v", r)
	}
	if s, p := w.engine("whatsapp").Stats(), w.engine("whatsapp").Pressure(); s.Successes != 1 || s.Failures != 0 || p.InFlight != 0 {
		t.Errorf("%+v %+v", s, p)
	}
}
