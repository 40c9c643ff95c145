package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// api is like the messaging API of a Graph: so many messages a second, and for some time it is out of order.
type api struct {
	quota      int           // messages a second
	takes      time.Duration // to answer
	from, till time.Duration // after the start: out of order

	mu        sync.Mutex
	began     time.Time // the first message
	second    int64
	used      int
	warm      map[string]bool
	ready     chan struct{} // closed when both workers have sent something
	all       chan struct{} // closed by the last
	want      int
	delivered map[string]time.Duration // from the queue to here, by message
	sent      int                      // of the campaign
	last      time.Duration            // after the start: the newest of these
	attempts  int
	throttled int
	broken    int
}

type message struct {
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	QueuedMS int64  `json:"queued_ms"`
}

func newAPI(want int) *api {
	return &api{quota: 25, takes: 30 * time.Millisecond, from: 3 * time.Second, till: 5 * time.Second, want: want, ready: make(chan struct{}), warm: map[string]bool{},
		all: make(chan struct{}), delivered: map[string]time.Duration{}}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m message
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&m); err != nil || m.ID == "" {
		refuse(w, http.StatusBadRequest, 100, "Invalid parameter")
		return
	}
	time.Sleep(a.takes)
	status := a.take(m)
	switch status {
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
		refuse(w, status, 130429, "(#130429) Rate limit hit")
	case http.StatusServiceUnavailable:
		refuse(w, status, 131016, "(#131016) Service unavailable")
	default:
		fmt.Fprintf(w, `{"messaging_product":"whatsapp","messages":[{"id":%q}]}`, m.ID)
	}
}

func refuse(w http.ResponseWriter, status, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": text, "type": "OAuthException", "code": code}})
}

func (a *api) take(m message) int {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.Kind == "warm-up" {
		if there := len(a.warm); there < 2 {
			if a.warm[m.ID] = true; len(a.warm) == 2 {
				close(a.ready)
			}
		}
		return http.StatusOK
	}
	if a.attempts++; a.attempts == 1 {
		a.began = now
	}
	at := now.Sub(a.began)
	if at >= a.from && at < a.till {
		a.broken++
		return http.StatusServiceUnavailable
	}
	if s := int64(at / time.Second); s != a.second {
		a.second, a.used = s, 0
	}
	if a.used >= a.quota {
		a.throttled++
		return http.StatusTooManyRequests
	}
	a.used++
	if _, twice := a.delivered[m.ID]; !twice {
		a.delivered[m.ID] = now.Sub(time.UnixMilli(m.QueuedMS))
		if m.Kind == "campaign" {
			a.sent, a.last = a.sent+1, at
		}
		if len(a.delivered) == a.want {
			close(a.all)
		}
	}
	return http.StatusOK
}
