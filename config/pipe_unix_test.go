//go:build unix

package config

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A reload that found a pipe without a writer in the place of its file waited for one, and all reloads after it.
func TestPipeInPlaceOfAFileIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	done := make(chan error, 2)
	go func() {
		_, err := Load(path)
		done <- err
		_, err = readSecret("token", path)
		done <- err
	}()
	for _, wrong := range []bool{true, false} { // of an empty secret others say that it is none
		select {
		case err := <-done:
			if (err != nil) != wrong {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for a writer")
		}
	}
}
