//go:build !unix

package front

func descriptorLimit() (uint64, bool) { return 0, false }
