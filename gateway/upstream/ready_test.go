package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// signedIn is a client that signs in, and whose token expires.
type signedIn struct {
	mu    sync.Mutex
	token string        // "" once it has expired
	next  chan struct{} // closed when there is another one
}

func (c *signedIn) Own() (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token, c.token != ""
}
func (c *signedIn) Later() (string, bool)                   { return c.Own() }
func (c *signedIn) Brought() (string, bool)                 { return c.Own() }
func (*signedIn) Waits() bool                               { return true }
func (*signedIn) Hear(string, string, time.Time, int)       {}
func (*signedIn) Challenge(_ int, values []string) []string { return values }
func (*signedIn) Bring(_, _ string)                         {}

// expire ends the token, and gives the client another one in a while.
func (c *signedIn) expire(in time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token, c.next = "", make(chan struct{})
	if in > 0 {
		time.AfterFunc(in, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.token = "Bearer new"
			close(c.next)
		})
	}
}

func (c *signedIn) Ready(ctx context.Context, _ func() (string, bool)) error {
	c.mu.Lock()
	next := c.next
	c.mu.Unlock()
	select {
	case <-next:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newSignedIn(ctx context.Context) (*signedIn, context.Context) {
	c := &signedIn{token: "Bearer old", next: make(chan struct{})}
	close(c.next)
	return c, forward.With(ctx, &forward.Parts{Credential: c})
}

// TestNothingGoesOutWithoutAToken: nothing is asked of the server while the token of a client that has
// left has expired: not a call, not an answer to its question, however silent it is meanwhile.
func TestNothingGoesOutWithoutAToken(t *testing.T) {
	bubble(t, fake.Stateful, Config{IdleTimeout: 10 * time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		c, ctx := newSignedIn(t.Context())
		var got json.RawMessage
		s.Tool("t", func(x *fake.Exchange) { got = x.Ask(`7`, "elicitation/create", elicit); x.Event(x.Fill(result)) })
		sink := &shimtest.Sink{OnAsk: func(_ context.Context, q ...shim.Question) ([]shim.Answer, error) {
			c.expire(time.Hour)
			return []shim.Answer{{Result: json.RawMessage(`{"action":"accept"}`)}}, nil
		}}
		r := in("a", all)
		r.Rounds = true
		c.expire(time.Minute)
		begin := time.Now()
		reply, err := h.Call(ctx, r, sink)
		if err != nil || reply.Error != nil || got == nil || time.Since(begin).Truncate(time.Minute) != time.Hour+time.Minute {
			t.Errorf("%+v, %v after %v, the answer is %s", reply, err, time.Since(begin), got)
		}
		for _, x := range slices.Concat(s.Seen("initialize"), s.Seen("tools/call"), s.Seen("POST")) {
			if value := x.Header.Get("Authorization"); value != "Bearer new" {
				t.Errorf("%s was sent with %q", x.Message, value)
			}
		}
		gone := errors.New("gone")
		c.expire(0)
		life, end := context.WithCancelCause(ctx)
		time.AfterFunc(time.Minute, func() { end(gone) })
		before := len(s.Seen("tools/call"))
		if _, err := h.Call(life, r, sink); !errors.Is(err, gone) || len(s.Seen("tools/call")) != before {
			t.Errorf("a call that ends first: %v", err)
		}
	})
}
