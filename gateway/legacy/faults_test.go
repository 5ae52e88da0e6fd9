package legacy_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/shim"
)

// faultySessions lose and keep back what the store says, as they are told.
type faultySessions struct {
	legacy.Sessions
	put      atomic.Bool        // states are not stored
	away     atomic.Bool        // logs can neither be added to nor ended
	forgets  atomic.Bool        // logs forget what is added before anybody reads it, as in a Redis that comes back older
	gone     atomic.Bool        // logs can neither be read nor left
	since    atomic.Bool        // the reply to the next reading of a GET stream is lost
	unread   atomic.Bool        // the logs of calls are not handed over
	missing  atomic.Bool        // they know that messages may be missing
	unknown  atomic.Bool        // they have come back as they were before the streams of calls
	shy      atomic.Bool        // no question gets into the log of a GET stream
	unheard  atomic.Int64       // so many GET streams more are opened without a reply
	unopened atomic.Int64       // so many streams more cannot be opened
	mute     atomic.Int64       // so many questions more are asked whose asker does not hear of it
	older    atomic.Int64       // they have come back as they were after this message; 0 for not
	looks    atomic.Int64       // how often a log was looked at
	held     chan chan struct{} // closed for the next one to open a log to go on
	opened   sync.Map           // the streams that were opened
	lost     sync.Map           // those whose replica has died
}

// kill has the replica of all streams die that have been opened until now.
func (f *faultySessions) kill() {
	f.opened.Range(func(stream, _ any) bool {
		f.lost.Store(stream, true)
		return true
	})
}

func (f *faultySessions) Append(ctx context.Context, id, stream string, message []byte) (int64, error) {
	if f.away.Load() {
		return 0, shim.ErrUnavailable
	}
	if f.forgets.Load() {
		return f.Sessions.Post(ctx, id, "forgotten", message)
	}
	return f.Sessions.Append(ctx, id, stream, message)
}

func (f *faultySessions) Post(ctx context.Context, id, stream string, message []byte) (int64, error) {
	if f.away.Load() {
		return 0, shim.ErrUnavailable
	}
	if f.forgets.Load() {
		stream = "forgotten"
	}
	return f.Sessions.Post(ctx, id, stream, message)
}

func (f *faultySessions) Leave(ctx context.Context, id, stream string, note []byte) error {
	if f.away.Load() || f.gone.Load() {
		return shim.ErrUnavailable
	}
	return f.Sessions.Leave(ctx, id, stream, note)
}

func (f *faultySessions) Finish(ctx context.Context, id, stream string, gone bool) error {
	if f.away.Load() {
		return shim.ErrUnavailable
	}
	if f.forgets.Load() {
		return nil
	}
	return f.Sessions.Finish(ctx, id, stream, gone)
}

func (f *faultySessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if f.put.Load() {
		return 0, shim.ErrUnavailable
	}
	return f.Sessions.Put(ctx, id, rev, state)
}

func (f *faultySessions) Ask(ctx context.Context, id, stream, asker, question, void string, message []byte) (int64, string, bool, error) {
	if f.shy.Load() && stream == legacy.GetStream {
		return 0, "", false, shim.ErrUnavailable
	}
	no, holder, has, err := f.Sessions.Ask(ctx, id, stream, asker, question, void, message)
	if f.mute.Add(-1) >= 0 {
		return 0, "", false, shim.ErrUnavailable
	}
	return no, holder, has, err
}

func (f *faultySessions) Since(ctx context.Context, id, stream string, after int64, on func(no int64, message []byte)) (string, []byte, error) {
	get := stream == legacy.GetStream
	switch {
	case f.gone.Load(), f.unread.Load() && after < math.MaxInt64 && !get, get && after == 0 && f.since.CompareAndSwap(true, false):
		return "", nil, shim.ErrUnavailable
	case !get && f.unknown.Load():
		return "", nil, nil
	}
	older := f.older.Load()
	state, note, err := f.Sessions.Since(ctx, id, stream, after, func(no int64, message []byte) {
		if older == 0 || no <= older {
			on(no, message)
		}
	})
	if f.missing.Load() {
		on(1<<40, nil)
	}
	f.looks.Add(1)
	if _, lost := f.lost.Load(stream); lost {
		state = "lost"
	}
	return state, note, err
}

func (f *faultySessions) Open(ctx context.Context, id, stream string, note []byte) (int64, error) {
	f.opened.Store(stream, true)
	select {
	case held := <-f.held:
		<-held
	default:
	}
	if f.unopened.Add(-1) >= 0 {
		return 0, shim.ErrUnavailable
	}
	after, err := f.Sessions.Open(ctx, id, stream, note)
	if stream == legacy.GetStream && f.unheard.Load() > 0 && f.unheard.Add(-1) >= 0 {
		return 0, shim.ErrUnavailable
	}
	if older := f.older.Load(); older > 0 {
		after = min(after, older)
	}
	return after, err
}

// together are sessions that several gateways of one process use: each is told of all.
type together struct {
	legacy.Sessions
	mu    sync.Mutex
	users []sessionsUser
}

// sessionsUser is what one gateway gives to Run.
type sessionsUser struct {
	busy   func(string) bool
	ended  func(string, []byte)
	signal func(id, text, token string, at time.Time)
}

// Run implements Sessions. The first gateway's run serves all.
func (s *together) Run(ctx context.Context, busy func(string) bool, ended func(string, []byte), signal func(id, text, token string, at time.Time)) error {
	s.mu.Lock()
	s.users = append(s.users, sessionsUser{busy, ended, signal})
	first := len(s.users) == 1
	s.mu.Unlock()
	if !first {
		<-ctx.Done()
		return nil
	}
	return s.Sessions.Run(ctx, func(id string) bool {
		return slices.ContainsFunc(s.all(), func(u sessionsUser) bool { return u.busy(id) })
	}, func(id string, state []byte) {
		for _, u := range s.all() {
			u.ended(id, state)
		}
	}, func(id, text, token string, at time.Time) {
		for _, u := range s.all() {
			u.signal(id, text, token, at)
		}
	})
}

func (s *together) all() []sessionsUser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}
