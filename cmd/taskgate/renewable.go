package main

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/work"
	"taskgate/shim"
)

// farewell is how long a server that has been replaced may take to end its sessions.
const farewell = 5 * time.Second

// handover is how long a new process of a server waits for the earlier ones to end. If a call takes longer,
// the new process runs beside them.
const handover = 10 * time.Second

// renewable is the client of one upstream, whose configuration may change. After a change, new work goes to a
// new client, and work under way ends with the client that it began with. Only listening, which has no end,
// goes over. It is safe for concurrent use.
type renewable struct {
	now     atomic.Pointer[lease]
	removed atomic.Bool      // the upstream takes no requests of clients
	work    *work.Background // closes clients that have been replaced
}

// lease is one client, with the work under way.
type lease struct {
	*upstream.ServerClient
	users work.Group
	over  context.Context // ends when the client is replaced
	end   context.CancelFunc
	alone context.Context // ends when the earlier client has ended, or handover is over
	begin context.CancelFunc
	clear chan struct{} // closed when the work of all earlier clients has ended
}

var (
	_ upstream.Client = offeredClient{}
	_ shim.Upstream   = (*renewable)(nil)
)

// newLease makes a lease whose client is still to be set.
func newLease() *lease {
	l := &lease{clear: make(chan struct{})}
	l.over, l.end = context.WithCancel(context.Background())
	l.alone, l.begin = context.WithCancel(context.Background())
	return l
}

// newRenewable makes a renewable; renewClient sets its first client.
func newRenewable() *renewable {
	return &renewable{work: work.NewBackground(context.Canceled)}
}

// renewClient replaces the client. The old one is closed once its work has ended. The processes of the new
// one start then, or after handover.
func (r *renewable) renewClient(next *lease) {
	old := r.now.Swap(next)
	if old == nil {
		next.begin()
		close(next.clear)
		return
	}
	old.users.Refuse()
	old.end()
	late := time.AfterFunc(handover, next.begin)
	r.work.Go(context.Background(), func(ctx context.Context) {
		defer late.Stop()
		_ = old.users.Wait(ctx) // or the process ends
		ctx, stop := context.WithTimeout(context.Background(), farewell)
		defer stop()
		_ = old.Close(ctx) // errors of a replaced server are ignored
		<-old.alone.Done() // the clients before it
		next.begin()
		<-old.clear
		close(next.clear)
	})
}

// Close closes the client, and the earlier ones.
func (r *renewable) Close(ctx context.Context) error {
	now := r.now.Load()
	if now == nil {
		return nil
	}
	now.end()
	err := now.ServerClient.Close(ctx)
	if late := r.work.Close(ctx); err == nil {
		err = late
	}
	return err
}

// retireClient closes the client once only listening is under way, or ctx ends. New calls have ceased by
// then.
func (r *renewable) retireClient(ctx context.Context) error {
	now := r.now.Load()
	now.users.Refuse()
	now.end()
	_ = now.users.Wait(ctx) // or the process ends
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	return r.Close(ctx)
}

// enterClient returns the present client. The caller leaves it after use.
func (r *renewable) enterClient() (*lease, func()) {
	l := r.now.Load()
	for !l.users.Enter() {
		next := r.now.Load()
		if next == l { // it has been removed, and this call began before
			return l, func() {}
		}
		l = next
	}
	return l, l.users.Leave
}

// Call goes to the present client, as do all methods that follow.
func (r *renewable) Call(ctx context.Context, q shim.Request, s shim.Sink) (shim.Reply, error) {
	l, leave := r.enterClient()
	defer leave()
	return l.Call(ctx, q, s)
}

// Resume implements shim.Upstream.
func (r *renewable) Resume(ctx context.Context, q shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
	l, leave := r.enterClient()
	defer leave()
	return l.Resume(ctx, q, cp, s)
}

// Resumable implements shim.Upstream.
func (r *renewable) Resumable(cp json.RawMessage) bool { return r.now.Load().Resumable(cp) }

// Admit implements upstream.Client.
func (r *renewable) Admit(ctx context.Context, s shim.Session) (proven bool, err error) {
	l, leave := r.enterClient()
	defer leave()
	return l.Admit(ctx, s)
}

// TakesToken implements upstream.Client.
func (r *renewable) TakesToken(ctx context.Context) bool {
	l, leave := r.enterClient()
	defer leave()
	return l.TakesToken(ctx)
}

// Notify implements upstream.Client.
func (r *renewable) Notify(ctx context.Context, s shim.Session, n shim.Notification) error {
	l, leave := r.enterClient()
	defer leave()
	return l.Notify(ctx, s, n)
}

// Describe implements upstream.Client.
func (r *renewable) Describe(ctx context.Context, s shim.Session) (upstream.Description, error) {
	l, leave := r.enterClient()
	defer leave()
	return l.Describe(ctx, s)
}

// Tool implements upstream.Client.
func (r *renewable) Tool(ctx context.Context, s shim.Session, name string) (upstream.Tool, bool, error) {
	l, leave := r.enterClient()
	defer leave()
	return l.Tool(ctx, s, name)
}

// Listen listens by the present client, and then by each that replaces it. ready is called for the first one.
func (r *renewable) Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	var once sync.Once
	first := func(f shim.Filter) { once.Do(func() { ready(f) }) }
	for {
		l, leave := r.enterClient()
		within, stop := context.WithCancelCause(ctx)
		unwatch := context.AfterFunc(l.over, func() { stop(nil) })
		err := l.Listen(within, s, f, first, on)
		unwatch()
		stop(nil)
		leave()
		if ctx.Err() != nil || r.now.Load() == l {
			return err
		}
	}
}

// Forget implements upstream.Client.
func (r *renewable) Forget(s shim.Session) { r.now.Load().Forget(s) }

// OnSessionQuestion sets f for the present client. The gateway sets it again after each change.
func (r *renewable) OnSessionQuestion(f upstream.SessionAsker) { r.now.Load().OnSessionQuestion(f) }

// EndSession ends a session with the present client. Earlier clients end theirs by themselves.
func (r *renewable) EndSession(ctx context.Context, key string) { r.now.Load().EndSession(ctx, key) }

// AsksForRoots implements upstream.Client.
func (r *renewable) AsksForRoots(ctx context.Context, s shim.Session, d upstream.Description) bool {
	return r.now.Load().AsksForRoots(ctx, s, d)
}

// DropDoubted drops the sessions in which the server answers no more.
func (r *renewable) DropDoubted() { r.now.Load().DropDoubted() }

// Reach checks whether the server can be reached.
func (r *renewable) Reach(ctx context.Context) error { return r.now.Load().Reach(ctx) }

// offeredClient is a renewable as the gateway uses it for clients. While the upstream is removed, the server
// hears only of calls that the shim has made before. In its place the gateway introduces itself, so that a
// client that comes back can read its tasks.
type offeredClient struct{ *renewable }

// Describe describes, in place of a removed server, one that says so.
func (o offeredClient) Describe(ctx context.Context, s shim.Session) (upstream.Description, error) {
	if o.removed.Load() {
		return upstream.StandIn(shim.ErrRemoved.Error()), nil
	}
	return o.renewable.Describe(ctx, s)
}

// Call refuses requests for a removed server.
func (o offeredClient) Call(ctx context.Context, q shim.Request, s shim.Sink) (shim.Reply, error) {
	if o.removed.Load() {
		return shim.Reply{}, shim.ErrRemoved
	}
	return o.renewable.Call(ctx, q, s)
}

// Tool finds no tool of a removed server.
func (o offeredClient) Tool(ctx context.Context, s shim.Session, name string) (upstream.Tool, bool, error) {
	if o.removed.Load() {
		return upstream.Tool{}, false, shim.ErrRemoved
	}
	return o.renewable.Tool(ctx, s, name)
}

// Listen hears nothing of a removed server. Its caller tries again: the server may come back.
func (o offeredClient) Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	if o.removed.Load() {
		return shim.ErrRemoved
	}
	return o.renewable.Listen(ctx, s, f, ready, on)
}
