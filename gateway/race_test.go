//go:build race

package gateway

func init() { raced, seeds = true, 1 }
