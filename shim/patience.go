package shim

import (
	"errors"
	"math/rand/v2"
	"time"
)

// callUpstream makes the upstream call. Where it was not sent because what it needs
// of the store could not be had, it is made again: a task waits for the store until
// its own time is over, a caller who blocks for as long as for any other answer of it.
func (r *run) callUpstream(retry *Retry) (Reply, error) {
	begin := time.Now()
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		reply, err := r.srv.Upstream.Call(r.ctx, r.request(retry), r)
		if !forWantOfStore(err) || !r.waitForStore(begin, pause) {
			return reply, err
		}
	}
}

// request is what the leg is asked for: the client's request, with the answers to what
// the server asked for (nil for none), and how long it may take.
func (r *run) request(retry *Retry) Request {
	req := r.call.Request
	req.Rounds, req.Limits, req.Retry = r.call.Asking != AskNever, r.policy.Questions, retry
	if req.Method == callTool {
		req.Within = r.policy.Timeout
	}
	return req
}

// waitForStore waits for about as long as pause before a call is made again that began
// then. It reports false if it must not be.
func (r *run) waitForStore(begin time.Time, pause time.Duration) bool {
	next := pause/2 + rand.N(pause)
	if !r.stored() {
		next = min(next, r.s.storeTimeout-time.Since(begin))
	}
	return next > 0 && wait(r.ctx, next)
}

// forWantOfStore reports whether a call was not sent because the store was away.
func forWantOfStore(err error) bool {
	var up *UpstreamError
	return errors.As(err, &up) && up.Unsent && errors.Is(err, ErrUnavailable)
}
