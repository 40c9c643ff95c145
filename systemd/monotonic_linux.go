package systemd

import (
	"syscall"
	"unsafe"
)

// monotonic is CLOCK_MONOTONIC in microseconds, by which systemd tells a reload from the one before. Package time does not show it.
func monotonic() (usec int64, ok bool) {
	const clockMonotonic = 1
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0, false
	}
	return t.Nano() / 1000, true
}
