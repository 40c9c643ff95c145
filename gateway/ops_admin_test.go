package gateway

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An operator's orders, from the admin port to the clients.
func TestCircuitForcedThroughAdminPort(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(500)}
		w.serve("up.test:80", up)
		o := w.operate(one("balance: {resolve: 0s}", ""), nil)
		c := w.client(stranger)
		order := func(state string) {
			t.Helper()
			a := o.admin("POST", "/api/v1/targets/up/circuit", `{"state":"`+state+`"}`)
			if a.status != 200 || decode(t, a.body)["forcing"] != state {
				t.Fatalf("%s: %+v", state, a)
			}
			if v := o.metric(`circuit_forced{target="up",state="` + state + `"}`); v != "1" {
				t.Errorf("%s: cortex_guard_circuit_forced %q", state, v)
			}
		}
		order("open")
		for range 10 {
			if a := w.get(c, "http://gateway.test:80/"); a.status != 503 || !strings.HasPrefix(a.header.Get("Cortex-Reason"), "CIRCUIT") {
				t.Fatalf("forced open: %+v", a)
			}
		}
		if up.n.Load() != 0 {
			t.Error("calls have passed a circuit that is forced open")
		}
		time.Sleep(time.Hour)
		if a := w.get(c, "http://gateway.test:80/"); a.status != 503 {
			t.Errorf("forced open, an hour later: %+v", a)
		}
		order("closed")
		for i := range 200 {
			if a := w.do(c, "POST", "http://gateway.test:80/", ""); a.header.Get("Cortex-Attempts") == "0" && strings.HasPrefix(a.header.Get("Cortex-Reason"), "CIRCUIT_OPEN") {
				t.Fatalf("forced closed, call %d: %+v", i, a)
			}
		}
		order("auto")
		openCircuit(t, w, c, "http://gateway.test:80/")
		if a := o.admin("POST", "/api/v1/targets/up/circuit", `{"state":"ajar"}`); a.status != 400 {
			t.Errorf("a state that there is not: %+v", a)
		}
		if a := o.admin("POST", "/api/v1/targets/none/circuit", `{"state":"open"}`); a.status != 404 {
			t.Errorf("a target that there is not: %+v", a)
		}
		if text := o.log.String(); strings.Count(text, "circuit") < 5 || !strings.Contains(text, "before=auto after=open") {
			t.Errorf("the log:\n%s", text)
		}
	})
}

func TestReloadThroughAdminPort(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		o := w.operate(one("", ""), nil)
		o.set("lisen: x\nadmn: y\n" + one("", ""))
		a := o.admin("POST", "/api/v1/reload", "")
		if a.status != 422 || a.header.Get("Content-Type") != "application/problem+json" {
			t.Fatalf("%+v", a)
		}
		problems, _ := decode(t, a.body)["problems"].([]any)
		if len(problems) != 2 || !strings.Contains(fmt.Sprint(problems[0]), "cortex.yaml:1:1: lisen") || !strings.Contains(fmt.Sprint(problems[1]), "admn") {
			t.Errorf("problems %q", problems)
		}
		o.set("drain: {delay: 7s}\n" + one("", "methods: [GET]"))
		if a := o.admin("POST", "/api/v1/reload", ""); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		if a := o.admin("GET", "/api/v1/config", ""); a.status != 200 || !strings.Contains(a.body, "delay: 7s") {
			t.Errorf("the configuration in force: %+v", a)
		}
		if a := w.do(w.client(stranger), "POST", "http://gateway.test:80/", "x"); a.status != 405 {
			t.Errorf("%+v", a)
		}
		if a := o.admin("PUT", "/api/v1/log", `{"level":"debug"}`); a.status != 200 || o.level.Level().String() != "DEBUG" {
			t.Errorf("level %v: %+v", o.level.Level(), a)
		}
		if a := o.admin("GET", "/api/v1/log", ""); decode(t, a.body)["level"] != "debug" {
			t.Errorf("%+v", a)
		}
	})
}

// The order to drain ends Run as a signal does; readiness goes first, and nothing that is under way is lost.
func TestDrainThroughAdminPort(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(8 * time.Second)
			io.WriteString(w, "whole")
		}))
		o := w.operate(draining+one("timeout: {enabled: false}", ""), nil)
		slow := make(chan answer)
		go func() { slow <- w.get(w.client(stranger), "http://gateway.test:80/") }()
		time.Sleep(time.Second)
		began := time.Now()
		for range 2 { // twice is once
			if a := o.admin("POST", "/api/v1/drain", ""); a.status != 202 {
				t.Fatalf("%+v", a)
			}
		}
		time.Sleep(time.Millisecond)
		if a := o.admin("GET", "/readyz", ""); a.status != 503 {
			t.Errorf("/readyz: %+v", a)
		}
		if v := o.metric("ready"); v != "0" {
			t.Errorf("cortex_guard_ready %q", v)
		}
		if a := <-slow; a.status != 200 || a.body != "whole" {
			t.Errorf("the call under way: %+v", a)
		}
		if err := <-o.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d < 7*time.Second || d > 8*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// Beyond loopback there are certificates, and a reload changes who may come in.
func TestAdminPortWithCertificates(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		a := newOpsAuthority(t)
		cert, key, _ := a.issue("admin", "admin.test")
		o := w.operate(fmt.Sprintf("admin: {listen: '0.0.0.0:9095', tls: {cert: %s, key: %s, client_ca: %s}}\n", cert, key, a.file)+one("", ""), nil)
		ask := func(with ...tls.Certificate) (int, error) {
			tr := &http.Transport{DialContext: w.dialFrom(stranger), TLSClientConfig: &tls.Config{RootCAs: a.pool(), Certificates: with}}
			defer tr.CloseIdleConnections()
			res, err := (&http.Client{Transport: tr}).Get("https://admin.test:80/api/v1/targets")
			if err != nil {
				return 0, err
			}
			defer res.Body.Close()
			io.Copy(io.Discard, res.Body)
			return res.StatusCode, nil
		}
		ours := a.pair("operator")
		if code, err := ask(ours); code != 200 {
			t.Errorf("with a certificate: %d %v", code, err)
		}
		if code, err := ask(); err == nil {
			t.Errorf("without one: %d", code)
		}
		other := newOpsAuthority(t)
		theirs := other.pair("operator")
		if code, err := ask(theirs); err == nil {
			t.Errorf("with another authority's: %d", code)
		}
		o.reload(strings.Replace(o.yaml, "client_ca: "+a.file, "client_ca: "+other.file, 1))
		if code, err := ask(theirs); code != 200 {
			t.Errorf("after the change: %d %v", code, err)
		}
		if code, err := ask(ours); err == nil {
			t.Errorf("with the certificate of before: %d", code)
		}
	})
}
