//go:build race

package model

// raced tells that the race detector is on. It makes the simulator, which has one goroutine a run, twenty times slower and finds nothing
// there: what judges numbers is left out then.
const raced = true
