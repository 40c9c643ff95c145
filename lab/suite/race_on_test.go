//go:build race

package suite_test

// seeds is how many runs a scenario is judged by. The race detector makes the simulator, which has one goroutine a run, ten times slower
// and finds nothing there: one seed will do.
const seeds = 1
