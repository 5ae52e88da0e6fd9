package shim

import (
	"errors"
	"math/rand/v2"
	"time"
)

// callUpstream makes the upstream call. Where it was not sent because what it needs
// of the store could not be had, it is made again: a task waits for the store until
// its own time is over, a caller who blocks for as long as for any other answer of it.
func (r *run) callUpstream(req Request) (Reply, error) {
	begin := time.Now()
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		reply, err := r.srv.Upstream.Call(r.ctx, req, r)
		if !forWantOfStore(err) || !r.stored() && time.Since(begin) >= r.s.storeTimeout {
			return reply, err
		}
		if !wait(r.ctx, pause/2+rand.N(pause)) {
			return reply, err
		}
	}
}

// forWantOfStore reports whether a call was not sent because the store was away.
func forWantOfStore(err error) bool {
	var up *UpstreamError
	return errors.As(err, &up) && up.Unsent && errors.Is(err, ErrUnavailable)
}
