package admin

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

func TestPageIsServedAndShutIn(t *testing.T) {
	d := newDesk(t, "0123456789abcdef")
	w := d.ask("GET", "/", "", "Host: gateway.example:9095") // it asks for the token itself
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Body.String() != page {
		t.Fatalf("%d %s", w.Code, w.Header().Get("Content-Type"))
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'",
		"base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("no %s in %s", part, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	for k, v := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
		"Referrer-Policy": "no-referrer"} {
		if got := w.Header().Get(k); got != v {
			t.Errorf("%s: %q, want %q", k, got, v)
		}
	}
	if w := d.ask("HEAD", "/", ""); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
	if w := d.ask("POST", "/", ""); w.Code != 401 {
		t.Errorf("POST: %d", w.Code)
	}
	if w := d.ask("GET", "/index.html", ""); w.Code != 401 {
		t.Errorf("another path: %d", w.Code)
	}
}

// The policy knows one script and one style; what else is in the page would not run, and what it loads from elsewhere not load.
func TestPageIsOneFile(t *testing.T) {
	if n := len(page); n > 20_000 {
		t.Errorf("%d bytes", n)
	}
	for _, tag := range []string{"<script", "<style"} {
		if n := strings.Count(page, tag); n != 1 {
			t.Errorf("%s is there %d times", tag, n)
		}
	}
	if m := regexp.MustCompile(`(?i)\s(style|on\w+)="|innerHTML|outerHTML|insertAdjacent|eval\(|localStorage|sessionStorage|document\.cookie|` +
		`(src|href)="[^d]|@import|url\(`).FindString(page); m != "" {
		t.Errorf("%q is in the page", m)
	}
	for _, u := range regexp.MustCompile(`https?://[^"' ]+`).FindAllString(page, -1) {
		if u != "http://www.w3.org/2000/svg" { // a name, not a place
			t.Errorf("%s is in the page", u)
		}
	}
}

// The page's script reads these of the API.
func TestPageFindsWhatItReads(t *testing.T) {
	d := busy(t)
	_, body := get(t, d, "GET", "/api/v1/targets")
	var list struct{ Targets []map[string]any }
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	target := list.Targets[0]
	member := target["members"].([]any)[0].(map[string]any)
	member["address"] = "" // absent where there is none
	script := page[strings.Index(page, "<script>"):]
	for of, object := range map[string]map[string]any{"t": target, "m": member} {
		keys := regexp.MustCompile(`\b`+of+`\.([a-z_]+)`).FindAllStringSubmatch(script, -1)
		if len(keys) < 5 {
			t.Errorf("%s: the script reads %d keys", of, len(keys))
		}
		for _, key := range keys {
			if _, ok := object[key[1]]; !ok {
				t.Errorf("the script reads %s.%s, which there is not", of, key[1])
			}
		}
	}
}
