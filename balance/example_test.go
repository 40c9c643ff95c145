package balance_test

import (
	"fmt"
	"net/url"
	"time"

	"github.com/seed-a29ca62a/cortex/balance"
)

func Example() {
	var now time.Duration
	a := &url.URL{Scheme: "http", Host: "10.0.0.1:9000"}
	b := &url.URL{Scheme: "http", Host: "10.0.0.2:9000"}
	p, err := balance.New(balance.Config{
		Endpoints: []balance.Endpoint{{URL: a}, {URL: b, Weight: 2}},
		Eject:     balance.Eject{Enabled: true},
		SlowStart: 10 * time.Second,
		OnEvent:   func(e balance.Event) { fmt.Println(e.Member.URL(), e.Kind) },
		Now:       func() time.Duration { return now },
		Rand:      func() float64 { return 0 }, // always the first
	})
	if err != nil {
		panic(err)
	}
	for range 10 {
		m := p.Pick(nil)
		m.Begin()
		o := balance.Success
		if m.Endpoint() == a {
			o = balance.Failed
		}
		now += 5 * time.Millisecond
		m.End(o, 5*time.Millisecond)
		if o == balance.Failed { // elsewhere, then
			m = p.Pick(m)
			m.Begin()
			m.End(balance.Success, 5*time.Millisecond)
		}
	}
	for _, s := range p.Snapshot() {
		fmt.Println(s.URL, s.State, s.Failed, s.Success)
	}
	// Output:
	// http://10.0.0.1:9000 ejected
	// http://10.0.0.1:9000 ejected 7 0
	// http://10.0.0.2:9000 healthy 0 10
}
