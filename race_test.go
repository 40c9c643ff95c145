//go:build race

package cortex_test

// The race detector makes the rig, which has one goroutine, ten times slower and finds nothing there: one seed will do.
func init() { rigSeeds = 1 }
