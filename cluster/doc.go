// Package cluster lets the guards of one target in many processes share what they see, through Redis: how many calls are offered and what
// became of them, one circuit with one probe at a time, one retry budget. See docs/cluster.md for what is kept where and what it costs.
//
//	c, err := cluster.New(cluster.Config{URL: "redis://10.0.0.7:6379/0"})
//	...
//	defer c.Close()
//	err = c.Guard(engine) // by its name
//
// One goroutine makes one pipelined round trip an interval, whatever the number of calls and engines. No call waits for Redis: where it is slow,
// away, emptied or full of junk, each guard goes on with what it sees itself, and joins again when it can.
package cluster
