package admin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// page is a live view of the targets: it asks /api/v1/targets once a second, and whoever looks at it for the token.
//
//go:embed page.html
var page string

// pagePolicy lets the page run its own script and style, known by their hashes, talk to this port, and nothing else.
var pagePolicy = "default-src 'none'; script-src " + hashOf("script") + "; style-src " + hashOf("style") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func hashOf(element string) string {
	_, rest, _ := strings.Cut(page, "<"+element+">")
	text, _, _ := strings.Cut(rest, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// isPage reports whether a request is for the page, which knows nothing by itself.
func isPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Path == "/"
}

func (a *admin) page(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	for _, l := range [...]struct{ key, value string }{
		{"Content-Type", "text/html; charset=utf-8"},
		{"Cache-Control", "no-store"},
		{"Content-Security-Policy", pagePolicy},
		{"Cross-Origin-Opener-Policy", "same-origin"},
		{"Cross-Origin-Resource-Policy", "same-origin"},
		{"Referrer-Policy", "no-referrer"},
		{"X-Content-Type-Options", "nosniff"},
		{"X-Frame-Options", "DENY"},
	} {
		h.Set(l.key, l.value)
	}
	w.Write([]byte(page))
}
