package quota_test

import (
	"fmt"

	"github.com/seed-a29ca62a/cortex/quota"
)

// Two holders share 64 KiB: what one has, the other cannot get.
func ExampleQuota() {
	memory := quota.New(64 << 10)
	fmt.Println(memory.Reserve(48 << 10))
	fmt.Println(memory.Reserve(32 << 10))
	memory.Release(48 << 10)
	fmt.Println(memory.Reserve(32 << 10))
	// Output:
	// true
	// false
	// true
}
