package redisstore

import (
	"context"
	"time"
)

// Offers hands questions of one upstream from the replica that heard them to the one
// that runs the call they belong to (design.md 0.16). A question is known by a ref,
// which is hexadecimal; whose it is depends on who takes it first.
type Offers struct {
	store *Store
	name  string
}

// Offers are those of the upstream of this name.
func (s *Store) Offers(name string) *Offers { return &Offers{store: s, name: name} }

// Offer puts a question up, for as long as keep, and tells all who watch to look. A
// repeat tells them again. It reports false once nobody need look any more.
func (o *Offers) Offer(ctx context.Context, ref string, content []byte, keep time.Duration) (open bool, err error) {
	a := &argv{}
	a.add(ref)
	a.list = append(a.list, content)
	a.add(millis(keep), o.store.keys.offers(o.name))
	return o.run(ctx, upstreamOfferScript, ref, a)
}

// Look returns what was offered, nil if it was taken, withdrawn or never there, and
// whether it was withdrawn.
func (o *Offers) Look(ctx context.Context, ref string) (content []byte, withdrawn bool, err error) {
	err = o.store.do(ctx, "offer", func() error {
		v, err := o.store.client.HMGet(ctx, o.key(ref), "q", "over").Result()
		if err != nil {
			return err
		}
		content, withdrawn = nil, v[1] != nil
		if q, ok := v[0].(string); ok {
			content = []byte(q)
		}
		return nil
	})
	return content, withdrawn, err
}

// Take reports whether the question is by's, who may ask that again: the first who
// takes it has it, unless it was withdrawn. That is remembered for keep.
func (o *Offers) Take(ctx context.Context, ref, by string, keep time.Duration) (bool, error) {
	a := &argv{}
	a.add(by, millis(keep))
	return o.run(ctx, upstreamTakeScript, ref, a)
}

// Withdraw says that the server no longer waits for an answer, and has whoever took
// the question look. It is no error if it was never offered.
func (o *Offers) Withdraw(ctx context.Context, ref string) error {
	a := &argv{}
	a.add(ref, o.store.keys.offers(o.name))
	_, err := o.run(ctx, upstreamWithdrawScript, ref, a)
	return err
}

// Watch calls on for each question that there is a reason to look at, until ctx ends.
// Reasons that come while on runs are merged, and one may be missed while the
// connection to Redis is broken.
func (o *Offers) Watch(ctx context.Context, on func(ref string)) {
	for e, err := range o.store.hub.watch(ctx, []string{o.store.keys.offers(o.name)}) {
		if err != nil {
			return // the store is closed
		}
		if !e.Synced {
			on(string(e.ID))
		}
	}
}

func (o *Offers) key(ref string) string { return o.store.keys.offer(o.name, ref) }

func (o *Offers) run(ctx context.Context, sc *script, ref string, a *argv) (ok bool, err error) {
	err = o.store.do(ctx, "offer", func() error {
		v, err := sc.run(ctx, o.store.client, []string{o.key(ref)}, a)
		ok = err == nil && v[0] == codeOK
		return err
	})
	return ok, err
}
