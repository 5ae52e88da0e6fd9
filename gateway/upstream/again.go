package upstream

import (
	"context"
	"errors"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// proof says how an answer proves that the server did not begin a request.
type proof int

// The proofs (design.md 0.11). Each is accepted once per call. A code is proof only in the body of a
// refusal (transport.StatusError.IsRefusal). The code -32021 is proof anywhere, by what it names.
const (
	lostSession  proof = iota // 404 to a session id
	otherHeaders              // -32020: our copy of the tool's schema is out of date
	otherVersion              // -32022 with its list: the server speaks another version by now
	otherEra                  // -32020 or -32022 in a legacy session
	needsTask                 // -32021: only a caller that takes tasks can call the tool
	proofs
)

// notBegun is an answer that proves that the server did not begin a request.
type notBegun struct {
	why proof
	// unproven says that the answer leaves it open after all: only the wrong basis of the request is dropped.
	unproven bool
	// The wrong basis of the request: a generation of a session, the verdict, or what is known of its
	// tool.
	ses        *session
	generation *generation
	v          *verdict
	tool       Tool
	// reply and err are returned if this was the last attempt.
	reply shim.Reply
	err   error
}

func (e *notBegun) Error() string { return "the server did not begin the request" }

// call is one Call, with the proofs that it has met so far. Only call sends a request again.
type call struct {
	h    *ServerClient
	r    shim.Request
	sink shim.Sink
	met  [proofs]bool
	at   target // to which it was last made
	// patience bounds the silence of the server in a call that asks about a job, of which there are many; 0 for others.
	patience time.Duration
}

// dropStale forgets what a request was wrongly based on.
func (c *call) dropStale(nb *notBegun) {
	switch nb.why {
	case lostSession:
		nb.ses.loseGeneration(nb.generation)
	case otherHeaders:
		c.h.memory.forgetTools(c.r.Session)
	case needsTask:
		nb.tool.learnRequired()
	default:
		if nb.ses != nil {
			nb.ses.loseGeneration(nb.generation) // the generation is that of another server
		}
		c.h.memory.forgetServer(nb.v)
	}
}

// Call sends one request and blocks for its reply. It sends the request a second time only after an answer
// that proves that the server did not begin it. When ctx ends, Call tells the server, unless the cause is
// shim.ErrDetached, and returns the cause. Other errors are *shim.UpstreamError, *shim.BusyError, or
// shim.ErrNotRepeatable.
func (h *ServerClient) Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
	switch {
	case r.Retry == nil:
	case r.Retry.Answers != nil:
		ctx = forward.For(ctx, forward.Brought)
	default:
		ctx = forward.For(ctx, forward.Later)
	}
	if err := forward.Represented(ctx, r.Session); err != nil {
		return shim.Reply{}, err
	}
	if r.IfRepeatable && !mayRepeat(ctx, h, r.Session, r.Name) {
		return shim.Reply{}, shim.ErrNotRepeatable
	}
	r.Params = reading.WithAnswers(r.Params, r.Retry)
	if r.Job != nil {
		return h.callForJob(ctx, r, s)
	}
	c := &call{h: h, r: r, sink: s}
	reply, err := c.runAttempts(ctx)
	return reading.ShowName(r, reply), err
}

// noteExchange notes to whom an attempt is made, and how patiently.
func (c *call) noteExchange(x *exchange) {
	c.at = x.to
	if c.patience > 0 {
		x.unseen, x.patience = true, c.patience
	}
}

func (c *call) runAttempts(ctx context.Context) (shim.Reply, error) {
	for {
		reply, err := c.makeAttempt(ctx)
		var nb *notBegun
		if !errors.As(err, &nb) {
			return reply, publicError(err)
		}
		c.dropStale(nb)
		if nb.unproven || c.met[nb.why] || ctx.Err() != nil {
			return nb.reply, publicError(nb.err)
		}
		c.met[nb.why] = true
	}
}

func (c *call) makeAttempt(ctx context.Context) (shim.Reply, error) {
	v, era, err := c.h.settleEra(ctx, c.r.Session)
	if err != nil {
		return shim.Reply{}, markUnsent(err)
	}
	if era == mcp.Modern {
		return c.attemptModern(ctx, v)
	}
	return c.attemptLegacy(ctx, v)
}
