//go:build unix

package accesslog

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// Opening a pipe that nobody read waited for ever, and with it the start or the reload.
func TestPipeThatNobodyReadsIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	if l, err := Open(Config{Path: path, Sample: 1, Errors: 1}); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("%v, %v", l, err)
	}
}
