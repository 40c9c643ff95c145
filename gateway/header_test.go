package gateway

import (
	"net/http"
	"testing"
)

// What strangers say in a proxy's name does not reach the target, nor under names that CGI and WSGI take for the same.
func TestSpoofedNamesOfStrangersAreTakenAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var got http.Header
		w.serve("up.test:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }))
		w.gateway(one("", ""))
		spoofed := []string{"X-Real-IP", "X-Forwarded-Port", "X-Forwarded-Prefix", "X_Forwarded_For", "X_Real_IP", "X_Forwarded-Proto", "Cortex_Timeout_Ms",
			"X_Priority", "X_Request_Id"}
		kept := []string{"X_Custom", "X-Custom", "X-Forwarder", "X-Real-Estate"}
		var sent []string
		for _, key := range append(append([]string{}, spoofed...), kept...) {
			sent = append(sent, key, "6.6.6.6")
		}
		w.get(w.client(stranger), "http://gateway.test:80/", sent...)
		for _, key := range spoofed {
			if v := got.Values(key); len(v) > 0 {
				t.Errorf("%s: %q reaches the target", key, v)
			}
		}
		for _, key := range kept {
			if got.Get(key) != "6.6.6.6" {
				t.Errorf("%s does not", key)
			}
		}
		w.get(w.client(trusted), "http://gateway.test:80/", sent...)
		for _, key := range append(spoofed[:3:3], kept...) {
			if got.Get(key) != "6.6.6.6" {
				t.Errorf("%s of a trusted peer does not reach the target", key)
			}
		}
	})
}
