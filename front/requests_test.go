package front

import (
	"net/http"
	"testing"
	"testing/synctest"
)

// Streams are to HTTP/2 what connections are to HTTP/1: 250 on each of 2,048 connections would be half a million requests under way of
// one client, each of which may hold a connection to an upstream.
func TestStreamsCountAsConnections(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		want   Stats
	}{
		{"of one client", Limits{H2C: true, ConnectionsPerClient: 2}, Stats{Accepted: 1, Client429: 1}},
		{"of all", Limits{H2C: true, MaxConnections: 2}, Stats{Accepted: 1, Full: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var goOn chan struct{}
			inWorld(t, c.limits, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/held" {
					<-goOn
				}
			}, func(w *world) {
				goOn = make(chan struct{}) // of the bubble
				k, frames := w.h2("", true)
				defer k.Close()
				k.say(request(1, "/held"))
				k.say(request(3, "/held"))
				synctest.Wait()
				k.say(request(5, "/one-too-many"))
				synctest.Wait()
				fs, _ := drain(frames)
				if !has(fs, 1, 5) || has(fs, 1, 1) || has(fs, 1, 3) {
					t.Errorf("answers are not to the third alone: %v", fs)
				}
				close(goOn)
				synctest.Wait()
				k.say(request(7, "/again"))
				synctest.Wait()
				if fs, open := drain(frames); !has(fs, 1, 7) || !open {
					t.Errorf("after that: %v, open %v", fs, open)
				}
				w.wantStats(c.want)
			})
		})
	}
}
