package shimtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"taskgate/shim"
)

// Repeats checks that a store keeps the contract of shim.Repeats.
func Repeats(t *testing.T, open OpenStore, of func(shim.Store) shim.Repeats) {
	for name, run := range map[string]func(*repeatsTest){
		"taken once":              (*repeatsTest).takenOnce,
		"awaited":                 (*repeatsTest).awaited,
		"the client has gone on":  (*repeatsTest).goneOn,
		"an end extends its time": (*repeatsTest).extended,
		"its time is over":        (*repeatsTest).expires,
		"a stream is resumed":     (*repeatsTest).resumed,
		"replicas hear of it":     (*repeatsTest).heard,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			t.Cleanup(cancel)
			handle := open(t)
			s := &storeTest{T: t, ctx: ctx, a: handle(), b: handle(), handle: handle}
			run(&repeatsTest{storeTest: s, one: of(s.a), other: of(s.b)})
		})
	}
}

// repeatsTest writes through one handle and reads through the other.
type repeatsTest struct {
	*storeTest
	one, other shim.Repeats
}

// anyState lets a note follow every state.
var anyState = []shim.LingerState{shim.LingerNone, shim.LingerAwaited, shim.LingerLeft, shim.LingerTaken}

func lingering(join bool) shim.Lingering {
	return shim.Lingering{ID: shim.NewID(), Client: "client", Call: "call", Join: join}
}

func (t *repeatsTest) note(e shim.Lingering, state shim.LingerState, from ...shim.LingerState) shim.LingerState {
	t.Helper()
	got, err := t.one.Note(t.ctx, e, state, from, time.Minute)
	t.ok(err)
	return got
}

// take takes a call, and says which or why not.
func (t *repeatsTest) take(client, call, op string, last bool) string {
	t.Helper()
	id, state, empty, err := t.other.Take(t.ctx, client, call, op, last, time.Minute)
	t.ok(err)
	switch {
	case state == shim.LingerTaken:
		return string(id)
	case empty:
		return "empty"
	}
	return string(state)
}

func (t *repeatsTest) want(got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func (t *repeatsTest) takenOnce() {
	first, second := lingering(false), lingering(true)
	t.want(t.take("client", "call", "op", false), "empty")
	t.note(first, shim.LingerLeft, anyState...)
	t.note(second, shim.LingerLeft, anyState...)
	t.want(t.take("another", "call", "op", false), "empty")
	t.want(t.take("client", "call", "op1", false), string(first.ID))
	t.want(t.take("client", "call", "op1", false), string(first.ID)) // its reply was lost
	t.want(t.take("client", "call", "op2", false), string(second.ID))
	t.want(t.take("client", "call", "op3", false), "awaited") // by those who have taken them
	t.want(t.take("client", "call", "op3", true), "none")
	t.want(string(t.note(first, shim.LingerLeft, shim.LingerTaken)), "left") // who has picked it up gives up as well
	t.want(t.take("client", "call", "op4", false), string(first.ID))
	t.ok(t.one.Drop(t.ctx, first))
	t.ok(t.one.Drop(t.ctx, second))
	t.want(t.take("client", "call", "op5", false), "empty")
}

func (t *repeatsTest) awaited() {
	e := lingering(false)
	t.want(string(t.note(e, shim.LingerAwaited, shim.LingerNone)), "awaited")
	t.want(t.take("client", "call", "op", false), "awaited")
	t.want(t.take("client", "call", "op", true), "none")
	t.want(t.take("client", "other", "op", false), "none")
	t.note(e, shim.LingerLeft, anyState...)
	t.want(t.take("client", "call", "op2", false), string(e.ID))
	t.want(string(t.note(e, shim.LingerAwaited, shim.LingerNone)), "taken")
}

func (t *repeatsTest) goneOn() {
	auto, join := lingering(false), lingering(true)
	t.note(auto, shim.LingerLeft, anyState...)
	t.note(join, shim.LingerLeft, anyState...)
	t.want(t.take("client", "other", "op", false), "none")
	t.want(t.take("client", "call", "op2", false), string(join.ID))
	t.want(t.take("client", "call", "op3", true), "none")
	t.note(auto, shim.LingerTaken, anyState...)
	t.note(auto, shim.LingerLeft, shim.LingerTaken) // it was given up anew
	t.want(t.take("client", "call", "op4", false), string(auto.ID))
}

// The end of a call leaves it to whoever has taken it meanwhile, and brings no call back.
func (t *repeatsTest) extended() {
	e := lingering(false)
	t.want(string(t.note(e, shim.LingerLeft, shim.LingerLeft)), "none")
	t.note(e, shim.LingerLeft, anyState...)
	t.want(string(t.note(e, shim.LingerLeft, shim.LingerLeft)), "left")
	t.want(t.take("client", "other", "op", false), "none")
	t.note(e, shim.LingerLeft, shim.LingerLeft)
	t.want(t.take("client", "call", "op", false), "none") // the client has still gone on
	t.note(e, shim.LingerTaken, anyState...)
	t.want(string(t.note(e, shim.LingerLeft, shim.LingerLeft)), "taken")
}

func (t *repeatsTest) expires() {
	left, taken := lingering(false), lingering(false)
	expire := func(e shim.Lingering, force bool) bool {
		t.Helper()
		rest, err := t.other.Expire(t.ctx, e.Client, e.ID, force)
		t.ok(err)
		return rest == 0
	}
	t.note(left, shim.LingerLeft, anyState...)
	t.note(taken, shim.LingerTaken, anyState...)
	if expire(left, false) || expire(taken, true) || !expire(left, true) || !expire(left, false) {
		t.Error("a call went too soon, or stayed")
	}
	_, err := t.one.Note(t.ctx, taken, shim.LingerTaken, anyState, time.Millisecond)
	t.ok(err)
	t.eventually("it expires", func() bool { return expire(taken, false) })
	_, err = t.one.Note(t.ctx, left, shim.LingerLeft, anyState, time.Millisecond)
	t.ok(err)
	t.eventually("nobody takes it any more", func() bool {
		return t.take("client", "call", string(shim.NewID()), false) != string(left.ID)
	})
}

func (t *repeatsTest) resumed() {
	e, other := lingering(true), lingering(true)
	e.Stream, other.Stream, other.Call = "a", "b", "other"
	t.note(e, shim.LingerLeft, anyState...)
	t.note(other, shim.LingerLeft, anyState...)
	t.ok(t.other.Resume(t.ctx, "client", "a"))
	t.want(t.take("client", "call", "op", false), "none")
	t.want(string(t.note(e, shim.LingerLeft, shim.LingerNone, shim.LingerAwaited)), "resumed") // the news was late
	t.want(t.take("client", "other", "op", false), string(other.ID))
}

func (t *repeatsTest) heard() {
	ctx, stop := context.WithCancel(t.ctx)
	defer stop()
	synced, news := make(chan struct{}, 100), make(chan shim.LingerNews, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range t.b.Inbox(ctx, "other") {
			switch {
			case err != nil:
				return
			case e.Synced:
				synced <- struct{}{}
			case e.Linger != nil:
				news <- *e.Linger
			}
		}
	}()
	<-synced
	e := lingering(false)
	t.note(e, shim.LingerAwaited, anyState...)
	t.note(e, shim.LingerLeft, anyState...)
	t.ok(t.one.Drop(t.ctx, e))
	for _, want := range []shim.LingerNews{{}, {Left: true}, {Over: true}} {
		want.Client, want.Call = e.Client, e.Call
		select {
		case got := <-news:
			if got != want {
				t.Errorf("heard %+v, want %+v", got, want)
			}
		case <-t.ctx.Done():
			t.Fatal("no news")
		}
	}
	clients, err := t.other.Clients(t.ctx)
	t.ok(err)
	if !slices.Contains(clients, "client") {
		t.Errorf("clients %v", clients)
	}
	stop()
	<-done
}
