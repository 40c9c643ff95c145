//go:build race

package gateway

func init() { seeds = 1 }
