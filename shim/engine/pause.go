package engine

import (
	"cmp"
	"context"
	"maps"
	"strconv"
	"sync/atomic"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// paused is what can be paused: the tools of a server, or one of them.
type paused struct{ upstream, tool string }

// pauses is what this replica knows of what operators have paused. A call looks in memory alone.
type pauses struct {
	s     *Shim
	store shim.Pauses   // nil if nothing is ever paused
	begun atomic.Bool   // somebody has begun the first read
	tried chan struct{} // closed once that is over
	known atomic.Pointer[map[paused]shim.Pause]
	turn  work.Turn // had while somebody reads: a late answer must not replace a newer one
}

// refuseCall is the *shim.BusyError of a call that an operator has paused; nil for any other. The first call of a replica
// waits for the first read: what was paused before a restart is paused after it. If that fails, calls go on until a
// beat has read it, as they do whenever the store is away.
func (ps *pauses) refuseCall(ctx context.Context, upstream string, r shim.Request) error {
	if ps.store == nil || r.Method != shim.CallTool {
		return nil
	}
	if ps.begun.CompareAndSwap(false, true) {
		ps.readPauses(ps.s.Life.Ctx)
		close(ps.tried)
	}
	select {
	case <-ps.tried:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	known := ps.known.Load()
	if known == nil || len(*known) == 0 {
		return nil
	}
	busy := &shim.BusyError{Key: shim.KeyPaused, RetryAfter: shim.RetryPaused}
	if _, all := (*known)[paused{upstream, ""}]; all {
		busy.Paused = "this server"
	} else if _, one := (*known)[paused{upstream, r.Name}]; one {
		busy.Paused = "the tool " + strconv.Quote(cmp.Or(r.Shown, r.Name))
	} else {
		return nil
	}
	return busy
}

// readPauses reads what is paused, and logs what has changed. While the store is away, what is known stays.
func (ps *pauses) readPauses(ctx context.Context) {
	if ps.store == nil {
		return
	}
	if ps.turn.TakeWithin(ctx) != nil {
		return
	}
	defer ps.turn.Give()
	all, err := node.WithPatience(ctx, ps.s.Core, ps.store.Paused)
	if err != nil {
		return
	}
	next, old := make(map[paused]shim.Pause, len(all)), map[paused]shim.Pause{}
	for _, p := range all {
		next[paused{p.Upstream, p.Tool}] = p
	}
	if before := ps.known.Swap(&next); before != nil {
		old = maps.Clone(*before)
	}
	for what, p := range next {
		if _, had := old[what]; !had {
			ps.s.Log.Warn("an operator has paused calls", "upstream", p.Upstream, "tool", p.Tool, "operator", p.By, "since", p.Since)
		}
		delete(old, what)
	}
	for what := range old {
		ps.s.Log.Info("calls go on that an operator had paused", "upstream", what.upstream, "tool", what.tool)
	}
}

// readPaused returns what is paused as this replica knows it, for the gauge: each upstream with its paused tools, ""
// for all of them.
func (s *Shim) readPaused() map[string][]string {
	all := make(map[string][]string)
	for name := range *s.servers.Load() {
		all[name] = nil
	}
	if known := s.pauses.known.Load(); known != nil {
		for what := range *known {
			all[what.upstream] = append(all[what.upstream], what.tool)
		}
	}
	return all
}

// Pause has new calls of a server's tools, or of one tool, told that they are paused. What runs goes on. It returns the
// pause that counts: an earlier one stays. *ChangeError.
func (o *Operator) Pause(ctx context.Context, p shim.Pause) (shim.Pause, error) {
	if _, err := o.s.findServer(p.Upstream); err != nil {
		return p, &shim.ChangeError{Reason: "there is no upstream " + strconv.Quote(p.Upstream)}
	}
	p, err := node.WithPatience(ctx, o.s.Core, func(ctx context.Context) (shim.Pause, error) { return o.s.pauses.store.Pause(ctx, p) })
	o.s.pauses.readPauses(ctx) // the others hear of it
	return p, err
}

// Resume ends a pause, and returns it. *ChangeError.
func (o *Operator) Resume(ctx context.Context, p shim.Pause) (shim.Pause, error) {
	all, err := o.Paused(ctx)
	if err != nil {
		return p, err
	}
	for _, one := range all {
		if one.Upstream == p.Upstream && one.Tool == p.Tool {
			_, err := node.WithPatience(ctx, o.s.Core, func(ctx context.Context) (struct{}, error) { return struct{}{}, o.s.pauses.store.Resume(ctx, p) })
			o.s.pauses.readPauses(ctx)
			return one, err
		}
	}
	return p, &shim.ChangeError{Reason: "it is not paused"}
}

// Paused lists what is paused, by the store.
func (o *Operator) Paused(ctx context.Context) ([]shim.Pause, error) {
	return node.WithPatience(ctx, o.s.Core, o.s.pauses.store.Paused)
}
