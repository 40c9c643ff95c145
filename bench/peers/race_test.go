//go:build race

package main

// Prioritizer.Calibrate of failsafe-go v0.9.8 reads the throttler's statistics without its lock.
func init() { skipped["failsafe-throttler"] = "has a data race of its own" }
