package door

import "testing"

func TestLoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:9096": true, "127.8.9.10:1": true, "[::1]:9096": true, "localhost:9096": true, "LOCALHOST:1": true, "[::ffff:127.0.0.1]:1": true,
		":9096": false, "0.0.0.0:9096": false, "[::]:9096": false, "10.0.0.1:9096": false, "example.com:80": false, "127.0.0.1": false, "": false,
		"localhost.example.com:80": false,
	} {
		if got := Loopback(listen); got != want {
			t.Errorf("%q: %v", listen, got)
		}
	}
}
