package upstream

import (
	"context"
	"errors"

	"taskgate/gateway/upstream/forward"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// proof says why a request has certainly not been begun.
type proof int

// The proofs (design.md 0.11). Each is accepted once per call. The codes prove
// something only as the body of a refusal (transport.StatusError.IsRefusal), but for -32021, which does by
// what it names.
const (
	lostSession  proof = iota // 404 to a session id
	otherHeaders              // -32020: our copy of the tool's schema is out of date
	otherVersion              // -32022 with its list: the server speaks another version by now
	otherEra                  // -32020 or -32022 in a legacy session
	needsTask                 // -32021: the tool can only be called by who takes tasks
	proofs
)

// notBegun is an answer that proves that the server did not begin a request.
type notBegun struct {
	why proof
	// What the request was wrongly based on: a generation of a session, the verdict, or what is
	// known of its tool.
	ses  *session
	link *link
	v    *verdict
	tool Tool
	// reply and err are what is given back if it happens again.
	reply shim.Reply
	err   error
}

func (e *notBegun) Error() string { return "the server did not begin the request" }

// call is one Call, with the proofs it has met so far. This is the only place
// that sends a request again.
type call struct {
	h    *HTTP
	r    shim.Request
	sink shim.Sink
	met  [proofs]bool
}

// sendAgainIfUnbegun has the request sent again if the answer is proof that it was not begun.
// If it is not, it is an answer like any other; but what the request was based on
// is dropped all the same, so that the next one does not meet it again.
func (c *call) sendAgainIfUnbegun(proof bool, nb *notBegun) (shim.Reply, error) {
	if proof {
		return shim.Reply{}, nb
	}
	c.dropStale(nb)
	return nb.reply, nb.err
}

// dropStale forgets what a request was wrongly based on.
func (c *call) dropStale(nb *notBegun) {
	switch nb.why {
	case lostSession:
		nb.ses.loseGeneration(nb.link)
	case otherHeaders:
		c.h.memory.forgetTools(c.r.Session)
	case needsTask:
		nb.tool.learnRequired()
	default:
		if nb.ses != nil {
			nb.ses.loseGeneration(nb.link) // that of another server
		}
		c.h.memory.forgetServer(nb.v)
	}
}

// Call sends one request and blocks for its reply. It is sent exactly once: sent
// again only after an answer that proves that the server did not begin it.
// When ctx ends, the upstream is told, unless the cause is shim.ErrDetached; the
// error is then that cause. Other errors are *shim.UpstreamError.
func (h *HTTP) Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
	if r.Retry != nil {
		ctx = forward.For(ctx, forward.Later)
	}
	if err := forward.Represented(ctx, r.Session); err != nil {
		return shim.Reply{}, err
	}
	r.Params = withAnswers(r.Params, r.Retry)
	c := &call{h: h, r: r, sink: s}
	return c.runAttempts(ctx)
}

func (c *call) runAttempts(ctx context.Context) (shim.Reply, error) {
	for {
		reply, err := c.makeAttempt(ctx)
		var nb *notBegun
		if !errors.As(err, &nb) {
			return reply, publicError(err)
		}
		c.dropStale(nb)
		if c.met[nb.why] || ctx.Err() != nil {
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
