package demo

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// retrier is what many services have today: a timeout of one second and three retries with exponential backoff, for every
// request, whatever the state of the target.
type retrier struct{ base http.RoundTripper }

const (
	plainTimeout = time.Second
	plainRetries = 3
	plainBackoff = 100 * time.Millisecond
)

func (t retrier) RoundTrip(r *http.Request) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		ctx, cancel := context.WithTimeout(r.Context(), plainTimeout)
		resp, err := t.base.RoundTrip(r.Clone(ctx))
		good := err == nil && resp.StatusCode < 500
		if good || attempt == plainRetries || r.Context().Err() != nil {
			if err != nil {
				cancel()
				return nil, err
			}
			resp.Body = cancelBody{resp.Body, cancel}
			return resp, nil
		}
		if err == nil {
			resp.Body.Close()
		}
		cancel()
		select {
		case <-time.After(plainBackoff << attempt):
		case <-r.Context().Done():
			return nil, errors.Join(r.Context().Err(), err)
		}
	}
}

type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b cancelBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
