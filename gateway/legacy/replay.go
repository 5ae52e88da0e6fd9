package legacy

import (
	"context"
	"errors"

	"taskgate/gateway/endpoint"
	"taskgate/shim"
)

// Between two streams of a client, what was asked on the first may be answered, withdrawn,
// or out of time. So who goes on with a stream leaves that out.

// replay knows which of the messages with which a stream goes on ask what nobody waits
// for any more.
type replay struct {
	e    *endpoint.Endpoint
	s    *session
	p    shim.Principal
	open map[shim.ID]map[string]bool // by call, keys of its open questions
}

func newReplay(e *endpoint.Endpoint, s *session, p shim.Principal) *replay {
	return &replay{e: e, s: s, p: p, open: make(map[shim.ID]map[string]bool)}
}

// isStale reports whether a message does. While that cannot be known, it does not.
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
