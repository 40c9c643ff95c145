package decision

import "net/http"

func newService(c Config) http.Handler { return http.NotFoundHandler() }
