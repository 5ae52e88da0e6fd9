package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// tokenKey is the key of the token of a request in its context.
type tokenKey struct{}

// tokens notes what a replica was brought for its calls.
type tokens struct {
	mu  sync.Mutex
	got []string
}

// server is an upstream whose clients have tokens.
func (k *tokens) server(u shim.Upstream) shim.Server {
	p := policy(shim.Auto)
	p.InputTimeout = time.Minute
	return shim.Server{
		Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p },
		SealToken: func(ctx context.Context, call string) string {
			token, _ := ctx.Value(tokenKey{}).(string)
			return token + " for " + call
		},
		BringToken: func(_ context.Context, call, token string) {
			k.mu.Lock()
			defer k.mu.Unlock()
			if token != "" {
				k.got = append(k.got, token+" to "+call)
			}
		},
	}
}

func (k *tokens) all() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.got)
}

// tokenWait is how long a run waits for the message that has a token.
const tokenWait = time.Second

// lateTokens is a store whose runners hear of a change first, and of its token just in time.
type lateTokens struct{ shim.Store }

func (l lateTokens) Inbox(ctx context.Context, r shim.Replica) iter.Seq2[shim.Event, error] {
	return func(yield func(shim.Event, error) bool) {
		for e, err := range l.Store.Inbox(ctx, r) {
			if token := e.Token; token != "" {
				e.Token = ""
				if !yield(e, err) {
					return
				}
				<-time.After(tokenWait - time.Millisecond)
				e.Token = token
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// TestTokenOfWhoBrings: the run of a call has the token of the request that answers or cancels it before the server
// hears of that, whichever replica the request comes to, and also if the run learns of it otherwise first. If the
// message to the run is lost, the answer and the cancellation get through without.
func TestTokenOfWhoBrings(t *testing.T) {
	ctx := func(t *testing.T) context.Context { return context.WithValue(t.Context(), tokenKey{}, "new") }
	ways := map[string]func(t *testing.T, at *engine.Shim, task, parked shim.ID) (shim.ID, error){
		"an answer": func(t *testing.T, at *engine.Shim, task, _ shim.ID) (shim.ID, error) {
			return task, at.Update(ctx(t), anyone, "up", task, results("a"))
		},
		"one answer": func(t *testing.T, at *engine.Shim, task, _ shim.ID) (shim.ID, error) {
			return task, at.Answer(ctx(t), anyone, "up", task, "a", shim.Answer{Result: json.RawMessage(`{}`)})
		},
		"a cancellation": func(t *testing.T, at *engine.Shim, task, _ shim.ID) (shim.ID, error) {
			_, err := at.Cancel(ctx(t), anyone, "up", task)
			return task, err
		},
		"an answer of who comes back": func(t *testing.T, at *engine.Shim, _, parked shim.ID) (shim.ID, error) {
			_, err := at.Reattach(ctx(t), askable(shim.AskPark), parked, results("a"))
			return parked, err
		},
		"who comes back and leaves": func(t *testing.T, at *engine.Shim, _, parked shim.ID) (shim.ID, error) {
			pass(90 * time.Second) // the question is over
			brief, stop := context.WithTimeout(ctx(t), time.Second)
			defer stop()
			if _, err := at.Reattach(brief, askable(shim.AskPark), parked, nil); !errors.Is(err, context.DeadlineExceeded) {
				return parked, err
			}
			return parked, nil
		},
	}
	for name, bring := range ways {
		for _, where := range []string{"here", "there", "there, late", "there, lost"} {
			bubbleOf(t, name+" "+where, func(t *testing.T, w *world) {
				var here, there tokens
				var heard [][]string // what the run had when the server heard
				u := &asks{}
				u.call = sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
					_, err := s.Ask(ctx, questions("a")...)
					if ctx.Err() == nil && err == nil && name == "who comes back and leaves" {
						<-ctx.Done()
					}
					heard = append(heard, here.all())
					return shim.Reply{Result: json.RawMessage(result)}, context.Cause(ctx)
				})
				store := map[string]shim.Store{
					"here": w.store, "there": w.store, "there, late": lateTokens{w.store}, "there, lost": &hooked{Store: w.store, drop: hint},
				}
				a := w.gatewayOf("a", here.server(u), func(o *engine.Options) { o.Store = store[where] })
				at := w.gatewayFor("b", there.server(u))
				if where == "here" {
					at = a
				}
				pass(time.Second) // until it hears messages
				c := askable(shim.AskPark)
				kept := parked(t, a, c, "a").ID
				c.Handle = true
				task := begin(t, a, c).ID
				id, err := bring(t, at, task, kept)
				must(t, err)
				pass(2 * tokenWait)
				want := []string{"new for " + string(id) + " to " + string(id)}
				if where == "there, lost" {
					pass(period) // until the audit has found it
					want = nil
				}
				if len(heard) == 0 || !slices.Equal(heard[0], want) || !slices.Equal(here.all(), want) || there.all() != nil {
					t.Errorf("the server has heard it with %q, brought were %q here and %q there", heard, here.all(), there.all())
				}
			})
		}
	}
}
