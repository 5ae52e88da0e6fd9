package shim

import "encoding/json"

// This file takes what a server streams of its result by itself (protocol.md 6.4.2): it
// is content or hints by the draft that the server speaks, and not by the tool's policy,
// which says what its progress is.

// Piece takes what the server streams: segments, or batches where the client takes
// partial results. From the first on, progress is no piece of anything besides: the
// server says the same twice. Only that it is content, as its policy may vouch, is worth
// more than the hints of a server.
func (r *run) Piece(p Piece) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Checkpoint != nil {
		r.mark, r.moved = p.Checkpoint, true
	}
	if !p.Content && r.policy.Partials.Content {
		return
	}
	r.streams = true
	if p.Content || r.call.hints() {
		r.gather(p.Blocks...)
	}
}

// shows reports whether anybody may see pieces of the result before it is there.
func (r *run) shows() bool { return r.batcher != nil && r.policy.Tasks != Never }

// request is what the leg is asked for: the client's request, with the answers to what
// the server asked for (nil for none), and what is wanted of it beside its answer.
func (r *run) request(retry *Retry) Request {
	req := r.call.Request
	req.Rounds, req.Limits, req.Retry = r.call.Asking != AskNever, r.policy.Questions, retry
	if req.Method == callTool {
		req.Pieces, req.Within = r.shows(), r.policy.Timeout
	}
	return req
}

// gather takes pieces. r.mu is held.
func (r *run) gather(pieces ...json.RawMessage) {
	b := r.batcher
	if b == nil || r.ended {
		return
	}
	for _, piece := range pieces {
		if b.add(piece) && b.segments {
			r.message = "partial results have reached their limit; the rest comes with the result"
			r.fold()
		}
	}
	r.stir()
}
