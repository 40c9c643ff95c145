package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// A stranger that was refused got in the body what the fields of the answer keep from it: the pressure, its signals, the floor, the target's name.
func TestRefusedStrangersGetNoReadings(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.NotFoundHandler())
		g := w.gateway(one("", ""))
		g.Targets()[0].Engine.Force(breaker.ForcedOpen)
		for host, told := range map[string]bool{stranger: false, trusted: true} {
			a := w.get(w.client(host), "http://gateway.test:80/")
			if a.status != 503 || !strings.Contains(a.body, "CIRCUIT_OPEN") || strings.Contains(a.body, `"cps"`) != told || strings.Contains(a.body, "operator") != told {
				t.Errorf("%s: %d %s", host, a.status, a.body)
			}
		}
	})
}
