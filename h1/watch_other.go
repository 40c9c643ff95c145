//go:build !linux

package h1

import "time"

// watch knows nothing here: only Linux is asked.
type watch struct{ pace }

func theWatch() *watch { return nil }

func (*watch) enter(*conn) {}

func (*watch) leave(*conn) {}

func (*watch) look(time.Time) {}

func (*watch) sweep() {}
