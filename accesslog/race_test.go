//go:build race

package accesslog

// The race detector makes pools forget what they hold.
func init() { raceDetector = true }
