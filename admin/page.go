package admin

import "net/http"

// isPage reports whether a request is for the page, which knows nothing by itself.
func isPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Path == "/"
}
