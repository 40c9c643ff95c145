package gateway

import (
	"errors"
	"io"
	"os"
	"time"
)

// prompt is the target of a tunnel, which may say nothing for as long as it likes, but has to take something of what waits for it within
// patience, as a client has to: a copy that is blocked does not see either that its client has gone.
type prompt struct {
	io.WriteCloser
	patience time.Duration
	whole    bool // TLS: a write that was cut short cannot be gone on with
}

// promptly makes a target prompt, if its connection has deadlines. The connection is a TLS one where encrypted is true.
func promptly(there io.WriteCloser, patience time.Duration, encrypted bool) io.WriteCloser {
	if _, ok := there.(deadlined); !ok || patience <= 0 {
		return there
	}
	return &prompt{WriteCloser: there, patience: patience, whole: encrypted}
}

type deadlined interface{ SetWriteDeadline(time.Time) error }

func (p *prompt) Write(b []byte) (int, error) {
	step := p.patience / 4
	if p.whole {
		step = p.patience
	}
	written := 0
	took := time.Now() // when something was last taken, or a step later
	for now := took; ; now = time.Now() {
		p.WriteCloser.(deadlined).SetWriteDeadline(now.Add(step))
		n, err := p.WriteCloser.Write(b[written:])
		written += n
		if err == nil || p.whole || !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
		switch ended := time.Now(); {
		case n > 0:
			took = ended
		case ended.Sub(took) >= p.patience:
			return written, err
		}
	}
}

// CloseWrite is that of the connection.
func (p *prompt) CloseWrite() error {
	if half, ok := p.WriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
