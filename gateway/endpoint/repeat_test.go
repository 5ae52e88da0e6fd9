package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// madeCall is a call as a client makes it.
type madeCall struct {
	owner, session, info, capabilities, upstream, tool, arguments, headers int
}

// spell returns the call with its arguments in one of their spellings.
func (m madeCall) spell(r *rand.Rand) (e *Endpoint, of shim.Repeat) {
	text := func(kind string, n int) string { // the names of one kind begin another's
		return []string{"", "a", "ab", "b", kind, kind + "\x00", kind + `"`}[n]
	}
	object := func(n int) json.RawMessage {
		if n == 0 {
			return nil
		}
		digits := strings.Repeat("7", 39) + fmt.Sprint(n)
		a, b := `"n":`+digits, `"text":"\u0061b"`
		if r.IntN(2) == 0 {
			b = `"text" : "ab"`
		}
		if r.IntN(2) == 0 {
			a, b = b, a
		}
		return json.RawMessage("{" + a + ", " + b + "}")
	}
	e = &Endpoint{Name: text("up", m.upstream), Config: config.NewUpstream("up", "http://up")}
	who := Repeater{Owner: text("owner", m.owner), Session: text("session", m.session), Info: object(m.info), Capabilities: object(m.capabilities)}
	arguments := object(m.arguments)
	return e, e.RepeatOf(who, text("tool", m.tool), e.Config.Defaults, func() json.RawMessage { return arguments }, shim.Session{Mark: text("mark", m.headers)}, time.Now(), nil)
}

// Of 10,000 random pairs, exactly those count as the same call of the same client that differ in nothing but the spelling.
func TestRepeatsOfNobodyElse(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	same := 0
	for range 10_000 {
		n := func() int { return r.IntN(7) }
		a := madeCall{n(), n(), n(), n(), n(), n(), n(), n()}
		b := a
		for _, field := range []*int{&b.owner, &b.session, &b.info, &b.capabilities, &b.upstream, &b.tool, &b.arguments, &b.headers} {
			if r.IntN(12) == 0 {
				*field = n()
			}
		}
		_, one := a.spell(r)
		_, two := b.spell(r)
		joins := one.Client() == two.Client() && one.Call() == two.Call()
		if joins != (a == b) {
			t.Fatalf("seed %d: %+v and %+v: %v", seed, a, b, joins)
		}
		if joins {
			same++
		}
	}
	if same < 1000 || same > 9000 {
		t.Errorf("%d pairs were the same", same)
	}
}

func TestWhoGivesUp(t *testing.T) {
	t.Parallel()
	timedOut, user := &shim.CancelledError{Reason: "request timeout"}, &shim.CancelledError{Reason: "AbortError: stop"}
	closed := errors.New("the connection has ended")
	for _, c := range []struct {
		mode    config.RepeatMode
		cause   error
		after   time.Duration // since the call; negative for a client whose connections say nothing
		givesUp bool
	}{
		{config.RepeatAuto, timedOut, -1, true},
		{config.RepeatAuto, user, -1, false},
		{config.RepeatAuto, &shim.CancelledError{}, -1, false},
		{config.RepeatAuto, shim.ErrCancelled, -1, false},
		{config.RepeatAuto, closed, time.Minute, true},
		{config.RepeatAuto, closed, 45 * time.Second, false},
		{config.RepeatAuto, user, time.Minute, false},
		{config.RepeatJoin, user, time.Minute, false},
		{config.RepeatJoin, &shim.CancelledError{}, -1, true},
		{config.RepeatJoin, closed, 45 * time.Second, true},
		{config.RepeatJoin, shim.ErrCancelled, -1, false},
	} {
		e := &Endpoint{Name: "up", Config: config.NewUpstream("up", "http://up")}
		e.Config.Defaults.Repeat = c.mode
		silence := func() time.Duration { return c.after }
		if c.after < 0 {
			silence = nil
		}
		of := e.RepeatOf(Repeater{}, "tool", e.Config.Defaults, nil, shim.Session{}, time.Now().Add(-max(0, c.after)), silence)
		if of.GaveUp(c.cause) != c.givesUp {
			t.Errorf("%s, %v after %v: %v", c.mode, c.cause, c.after, !c.givesUp)
		}
	}
}

// The end of a session is a giving up where its caller has an owner: the same client of that owner finds the call in any
// other session.
func TestGivingUpASession(t *testing.T) {
	t.Parallel()
	e := &Endpoint{Name: "up", Config: config.NewUpstream("up", "http://up")}
	of := func(r Repeater) shim.Repeat {
		return e.RepeatOf(r, "tool", e.Config.Defaults, nil, shim.Session{}, time.Now(), nil)
	}
	one := of(Repeater{Owner: "alice", Session: "1", Info: json.RawMessage(`{"name":"a"}`)})
	other := of(Repeater{Owner: "alice", Session: "2", Info: json.RawMessage(`{"name":"a"}`)})
	if !one.GaveUp(shim.ErrCancelled) || one.Client() == other.Client() || one.AfterSession() != other.OfEndedSession().Client() {
		t.Error("another session of the client cannot find the call")
	}
	for _, r := range []Repeater{{Owner: "bob", Session: "2", Info: json.RawMessage(`{"name":"a"}`)}, {Owner: "alice", Session: "2", Info: json.RawMessage(`{"name":"b"}`)}} {
		if of(r).AfterSession() == one.AfterSession() {
			t.Errorf("%+v finds the call", r)
		}
	}
	if nobody := of(Repeater{Session: "1"}); nobody.GaveUp(shim.ErrCancelled) || nobody.OfEndedSession().IsPossible() {
		t.Error("a client without an owner gives up its session")
	}
}

func TestWithPickedUp(t *testing.T) {
	t.Parallel()
	reply := shim.Reply{Result: json.RawMessage(`{"content":[],"_meta":{"a":1}}`), Plain: true}
	if got := WithPickedUp(shim.Answered{Reply: reply}); string(got.Result) != string(reply.Result) || !got.Plain {
		t.Errorf("a call of its own: %s", got.Result)
	}
	got := WithPickedUp(shim.Answered{Reply: reply, PickedUp: time.Unix(1, 0)})
	if at, _ := jsonrpc.GetString(got.Result, "_meta", mcp.MetaPickedUp); at != "1970-01-01T00:00:01Z" || got.Plain {
		t.Errorf("picked up: %s", got.Result)
	}
	if got := WithPickedUp(shim.Answered{Reply: shim.Reply{Error: &shim.RPCError{}}, PickedUp: time.Unix(1, 0)}); got.Result != nil {
		t.Errorf("an error has %s", got.Result)
	}
}
