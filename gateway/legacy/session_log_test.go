package legacy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/dialect"
	"taskgate/shim/node"
)

// askingSession is a session in a store whose client can be asked.
func askingSession(t *testing.T, store Sessions) *session {
	t.Helper()
	table := NewTable(store, 3*time.Second, func(context.Context, Ended) {})
	s := mustCreate(t, table, sessionState{Capabilities: json.RawMessage(`{"elicitation":{}}`)})
	t.Cleanup(func() {
		s.endUse()
		_ = table.Close(context.Background())
	})
	return s
}

// asksOf is a task that asks these questions.
func asksOf(keys ...string) shim.Task {
	task := shim.Task{ID: shim.NewID(), Visible: true, Status: shim.InputRequired}
	for _, key := range keys {
		task.Questions = append(task.Questions, shim.Question{Key: key, Method: mcp.MethodElicit, Params: json.RawMessage(`{}`)})
	}
	return task
}

// A question that is answered while a round over the questions is under way is not asked by that
// round, though the round began before the answer.
func TestAskerIsAnsweredMeanwhile(t *testing.T) {
	s := askingSession(t, wiretest.OpenSessions(t, 1, time.Hour))
	task, sent := asksOf("q1", "q2"), 0
	var a *asker
	a = newAsker(t.Context(), s, nil, askLine{ask: func(context.Context, string, string, []byte) (string, bool, error) {
		sent++
		task.Questions[1].Answer = []byte(`{}`)
		a.takeState(task)
		return "", false, nil
	}})
	a.wake = make(chan struct{}, 1) // the rounds are those of the test
	a.takeState(task)
	a.askAll(false)
	if sent != 1 {
		t.Errorf("asked %d times", sent)
	}
}

// tablesOfReplicas are two replicas over one store. What they hear of each other goes
// through that.
func tablesOfReplicas(t *testing.T) (a, b *Table) {
	t.Helper()
	store := wiretest.Must(redisstore.Open(t.Context(), "embedded",
		redisstore.Options{ClockTTL: true, Logger: slog.New(slog.DiscardHandler)}))(t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	for _, table := range []**Table{&a, &b} {
		*table, _ = newTable(store.Sessions(node.NewHeart(store, "holder", time.Minute, slog.Default()), 10, time.Hour))
		go func() { done <- (*table).Run(ctx) }()
	}
	t.Cleanup(func() {
		stop()
		_ = a.Close(context.Background())
		_ = b.Close(context.Background())
		wiretest.Check(t, errors.Join(<-done, <-done, store.Close()))
	})
	return a, b
}

// A signal that cancels a request reaches the replica where that runs, whatever its id is. It
// is kept for a while, and cancels no later request with the same id: neither one that its
// replica has begun meanwhile, nor one at a replica that did not know the session.
func TestCancelOfAnEndedRequest(t *testing.T) {
	long := jsonrpc.StringID(strings.Repeat("x", 1<<20))
	for name, id := range map[string]jsonrpc.ID{"short": jsonrpc.IntID(5), "long": long} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := tablesOfReplicas(t)
				s := mustCreate(t, a, sessionState{Upstream: "up"})
				defer s.endUse()
				wiretest.Check(t, s.abortRequest(t.Context(), shim.Principal{}, id, "")) // it has ended
				wiretest.Wait(10 * time.Second)
				o := wiretest.Must(b.open(t.Context(), s.id, "up", shim.Principal{}))(t)
				defer o.endUse()
				call, end, _ := o.beginRequest(t.Context(), shim.Principal{}, jsonrpc.Message{ID: id})
				defer end()
				wiretest.Wait(2 * time.Minute)
				if call.Err() != nil {
					t.Fatal("the cancellation of another request has ended it")
				}
				wiretest.Check(t, s.abortRequest(t.Context(), shim.Principal{}, id, ""))
				wiretest.Wait(time.Second)
				if !errors.Is(context.Cause(call), shim.ErrCancelled) {
					t.Error("it is not cancelled")
				}
				if n := len(callKey(id)); n > 100 {
					t.Errorf("%d bytes go to every replica", n)
				}
			})
		})
	}
}

// A progress token is kept with the call and repeated with each progress. One that is far
// longer than any client makes is none.
func TestLongProgressToken(t *testing.T) {
	a, _ := tablesOfReplicas(t)
	s := mustCreate(t, a, sessionState{Upstream: "up"})
	defer s.endUse()
	for size, kept := range map[int]bool{100: true, 1 << 20: false} {
		token := `"` + strings.Repeat("x", size) + `"`
		msg := jsonrpc.Message{Kind: jsonrpc.Request, Method: "tools/call", Params: []byte(`{"_meta":{"progressToken":` + token + `}}`)}
		if q := newLegacyRequest(&Handler{}, s, shim.Principal{}, msg); (string(q.token) == token) != kept || !kept && q.token != nil {
			t.Errorf("of %d bytes %d are kept", size, len(q.token))
		}
	}
}

// Of messages in a row that the store has forgotten a client hears once, also where nothing follows them.
func TestForgottenMessagesAreToldOnce(t *testing.T) {
	for _, log := range [][]logEntry{
		{{1, nil}, {2, nil}, {3, nil}, {4, []byte(`{"id":1}`)}},
		{{1, nil}, {2, nil}, {3, nil}},
	} {
		table, _ := newTable(newBrokenSessions(t, false))
		out := httptest.NewRecorder()
		w := &writer{s: newSession(table, "s"), name: "x", state: logged, out: eventstream.NewWriter(out, 0)}
		w.sendMore(t.Context(), nil, log)
		if n := strings.Count(out.Body.String(), "messages may be missing"); n != 1 {
			t.Errorf("it is told %d times:\n%s", n, out.Body)
		}
	}
}

// A client that counts and begins anew gets no id from before its mark: from such an id it
// would be resumed as the client before it, which has had more.
func TestNoIDsBeforeTheMark(t *testing.T) {
	const mark = 5
	for _, c := range []struct {
		w    writer
		no   int64
		want string
	}{
		{writer{name: "get", state: logged, count: &seqFilter{last: mark}}, mark - 1, ""},
		{writer{name: "get", state: logged, count: &seqFilter{last: mark}}, mark, "get.5"},
		{writer{name: "get", state: logged, resumed: true, count: &seqFilter{last: mark}}, mark - 1, "get.4"},
		{writer{name: "get", state: logged}, mark - 1, "get.4"},
		{writer{name: "get"}, mark, ""},
	} {
		if got := c.w.eventID(c.no); got != c.want {
			t.Errorf("message %d of %+v has the id %q, want %q", c.no, c.w, got, c.want)
		}
	}
}

// A client that begins anew where the last stream left partial results and the end of a task
// in the log gets both from the beginning, and not the end alone: the record has forgotten
// the task by then.
func TestUnsentEndBeginsAnew(t *testing.T) {
	message := func(method, params string) []byte {
		return jsonrpc.AppendNotification(nil, method, []byte(params))
	}
	log := []logEntry{
		{4, message(mcp.NotifyTaskPartial, `{"taskId":"forgotten","seq":3}`)},
		{5, message(mcp.NotifyTaskStatus, `{"taskId":"forgotten","status":"completed"}`)},
		{6, message(mcp.NotifyTaskStatus, `{"taskId":"named","status":"completed"}`)},
		{7, message(mcp.NotifyToolsListChanged, `{}`)},
	}
	c := newSeqFilter(log, 0, false, []shim.ID{"named"})
	c.last = 8
	if !slices.Equal(c.unsent, []shim.ID{"forgotten"}) {
		t.Errorf("followed besides: %s", c.unsent)
	}
	for i, want := range []bool{false, false, false, true} {
		if got := c.isDue(log[i].no, log[i].message); got != want {
			t.Errorf("%s is sent from the log: %t", log[i].message, got)
		}
	}
	for seq := range int64(2) {
		m := message(mcp.NotifyTaskPartial, fmt.Sprintf(`{"taskId":"forgotten","seq":%d}`, seq))
		if !c.isDue(9+seq, m) {
			t.Errorf("%s is not sent", m)
		}
	}
}

// TestPartialsFollowOneAnother: of a stream that another replica still writes, a client gets each partial result once
// and in order.
func TestPartialsFollowOneAnother(t *testing.T) {
	c := newSeqFilter(nil, 0, false, nil)
	var sent []int64
	for no, seq := range []int64{0, 2, 1, 1, 3, 2, 0} {
		message := jsonrpc.AppendNotification(nil, mcp.NotifyTaskPartial, dialect.Legacy.Partial("t", seq, json.RawMessage(`[]`)))
		if c.isDue(int64(no)+1, message) {
			sent = append(sent, seq)
		}
	}
	if want := []int64{0, 1, 2}; !slices.Equal(sent, want) {
		t.Errorf("sent %d, want %d", sent, want)
	}
}
