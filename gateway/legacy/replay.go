package legacy

import (
	"context"
	"errors"

	"taskgate/gateway/endpoint"
	"taskgate/shim"
)

// Between two streams of a client, a question asked on the first may be answered, withdrawn, or out
// of time. A stream that goes on leaves such questions out.

// replay finds the messages of a resumed stream that ask settled questions.
type replay struct {
	e    *endpoint.Endpoint
	s    *session
	p    shim.Principal
	open map[shim.ID]map[string]bool // by call, keys of its open questions
}

func newReplay(e *endpoint.Endpoint, s *session, p shim.Principal) *replay {
	return &replay{e: e, s: s, p: p, open: make(map[shim.ID]map[string]bool)}
}

// isStale reports whether a message asks a settled question; false while the store is away.
func (r *replay) isStale(ctx context.Context, message []byte) bool {
	call, key, over, ok := readQuestion(message)
	if !ok || over {
		return false
	}
	open, known := r.open[call]
	if !known {
		questions, err := r.e.Shim.Outstanding(ctx, r.s.askedPrincipal(call, r.p), r.e.Name, call)
		if err != nil && !errors.Is(err, shim.ErrNotFound) {
			return false
		}
		open = make(map[string]bool)
		for _, q := range questions {
			open[q.Key] = true
		}
		r.open[call] = open
	}
	return !open[key]
}
