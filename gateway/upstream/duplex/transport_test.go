package duplex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// answers is a server that answers everything.
func answers(p *pipe, m jsonrpc.Message) {
	if m.Kind == jsonrpc.Request {
		p.answer(m)
	}
}

// A response that nobody reads holds up nobody. Its reader gets the newest progress and the
// answer; log messages that did not fit are dropped, and counted.
func TestReaderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		tr := opens(t, Config{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, func(p *pipe, m jsonrpc.Message) {
			if m.Method != "chatter" {
				answers(p, m)
				return
			}
			text := strings.Repeat("x", 8<<10)
			for i := range 1000 {
				p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"c","progress":%d,"message":%q}}`, i, text)
				p.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%q}}`, text)
			}
			p.answer(m)
		})
		session := begin(t, tr)
		slow := mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"c","method":"chatter"}`)
		synctest.Wait()
		before := time.Now()
		echo(t, tr, session)
		if d := time.Since(before); d != 0 {
			t.Errorf("answered after %s", d)
		}
		all := text(t, slow)
		if len(all) > maxQueue+16<<10 {
			t.Errorf("%d bytes", len(all))
		}
		for _, want := range []string{`"progress":999,`, `"id":"c","result":{}`} {
			if !strings.Contains(all, want) {
				t.Errorf("%s was not said", want)
			}
		}
		if !strings.Contains(logs.String(), "were dropped") {
			t.Errorf("logged: %s", &logs)
		}
	})
}

// The pauses after servers that cannot begin grow, and end with the first that says something.
// Other errors of Open make none.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error = &Exit{Kind: shim.KindTimeout, How: "did not begin", Err: errTest}
		tr := opens(t, Config{Open: func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
			if failure != nil {
				return nil, failure
			}
			return newPipe(answers), nil
		}}, nil)
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			_, err := post(t, tr, "", hello)
			if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != shim.KindTimeout || !ue.Unsent || ue.Message != "the pipe did not begin" || !errors.Is(err, errTest) {
				t.Fatalf("error %v", err)
			}
			_, err = post(t, tr, "", hello)
			ue, ok := errors.AsType[*shim.UpstreamError](err)
			if !ok || ue.Kind != shim.KindUnreachable || !ue.Unsent || !strings.Contains(ue.Message, fmt.Sprintf("the pipe did not begin (the next attempt can be made in %ds)", want)) {
				t.Fatalf("error %v", err)
			}
			if got := time.Duration(ue.RetryAfterMs) * time.Millisecond; got != want*time.Second+time.Millisecond {
				t.Errorf("come back in %s, want %ds", got, want)
			}
			<-time.After(want * time.Second)
		}
		failure = nil
		begin(t, tr)
		failure = errTest
		for range 2 {
			if _, err := post(t, tr, "", hello); err != errTest {
				t.Errorf("error %v", err)
			}
		}
	})
}

// The last words of a server that has served several callers may be about another one: they are for the log.
func TestPauseKeepsWordsOfOthers(t *testing.T) {
	tr := opens(t, Config{}, nil)
	for name, private := range map[string]bool{"all": false, "alice": true} {
		owner := Owner{Name: name, Private: private}
		tr.mu.Lock()
		for range 2 {
			tr.countFailure(owner, &Exit{How: "has ended", Said: "a bad row in bob's file"}, true)
		}
		err := tr.pauseError(owner)
		tr.mu.Unlock()
		ue, ok := errors.AsType[*shim.UpstreamError](err)
		if !ok || strings.Contains(ue.Message, "bob") != private || !private && !strings.Contains(fmt.Sprint(ue.Err), "bob") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a server refuses by HTTP is the error, of a message and of a session.
func TestRefusal(t *testing.T) {
	refusal := &transport.StatusError{Status: http.StatusTeapot}
	var refuse error
	tr := opens(t, Config{Max: 9, Open: func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
		p := newPipe(answers)
		p.send = func() error { return refuse }
		return p, nil
	}}, nil)
	session := begin(t, tr)
	refuse = refusal
	for _, body := range []string{hello, `{"jsonrpc":"2.0","id":"e","method":"echo"}`, `{"jsonrpc":"2.0","method":"n"}`} {
		in := session
		if body == hello {
			in = ""
		}
		if _, err := post(t, tr, in, body); err != refusal {
			t.Errorf("%s: %v", body, err)
		}
	}
	refuse = nil
	echo(t, tr, session) // which is as before
	refuse = errTest
	if _, err := post(t, tr, session, `{"jsonrpc":"2.0","id":"e","method":"echo"}`); err != errTest {
		t.Errorf("error %v", err)
	}
	refuse = nil
	echo(t, tr, session)
}

// A server that is being opened counts; where all are in use, one more is refused.
func TestMaxCountsWhatIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := make(chan struct{})
		tr := opens(t, Config{Max: 2, Open: func(ctx context.Context, _ *transport.Outgoing, _ *sync.WaitGroup, _ <-chan struct{}) (Link, error) {
			<-opened
			return newPipe(answers), nil
		}}, nil)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { begin(t, tr) })
		}
		synctest.Wait()
		_, err := post(t, tr, "", hello)
		if busy, ok := errors.AsType[*shim.BusyError](err); !ok || busy.Key != "max_pipes" || busy.RetryAfter != time.Second {
			t.Errorf("error %v", err)
		}
		close(opened)
		all.Wait()
		begin(t, tr) // in place of an unused one
		if n := len(tr.servers); n != 2 {
			t.Errorf("%d servers", n)
		}
	})
}

// A server that is opened while the Transport is closed is ended.
func TestCloseWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := make(chan struct{})
		p := newPipe(answers)
		tr := opens(t, Config{Open: func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
			<-opened
			return p, nil
		}}, nil)
		done := make(chan error, 1)
		go func() {
			_, err := post(t, tr, "", hello)
			done <- err
		}()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- tr.Close(context.Background()) }()
		synctest.Wait()
		close(opened)
		if err := <-done; err == nil || !strings.Contains(err.Error(), "shutting down") {
			t.Errorf("error %v", err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		select {
		case <-p.over:
		default:
			t.Error("the pipe was not stopped")
		}
	})
}

// A question to a client that declares nothing that can be asked is refused at once.
func TestQuestionsAreHeldForWhoCanBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := make(chan time.Time, 8)
		tr := opens(t, Config{}, func(p *pipe, m jsonrpc.Message) {
			if m.Kind == jsonrpc.Request {
				p.say(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)
				p.answer(m)
			} else if m.Kind == jsonrpc.ErrorResponse {
				refused <- time.Now()
			}
		})
		began := time.Now()
		begin(t, tr)
		if d := (<-refused).Sub(began); d != 0 {
			t.Errorf("refused after %s", d)
		}
	})
}

// A server written by hand answers a notification with an error, and fast-mcp with a result. That ends no request; an
// answer without an id to the only request does.
func TestAnswersWithoutID(t *testing.T) {
	for nobodys, told := range map[string]string{
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid"}}`: "invalid",
		`{"jsonrpc":"2.0","id":null,"result":{}}`:                                 "no JSON-RPC message",
		`{"jsonrpc":"2.0","result":{}}`:                                           "no JSON-RPC message",
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := opens(t, Config{}, func(p *pipe, m jsonrpc.Message) {
				switch {
				case m.Kind == jsonrpc.Notification, m.Method == "bad":
					p.say("%s", nobodys)
				case m.Method == "slow":
					<-time.After(time.Second)
					p.answer(m)
				default:
					p.answer(m)
				}
			})
			session := begin(t, tr)
			slow := mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"s","method":"slow"}`)
			mustPost(t, tr, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			if all := text(t, slow); !strings.Contains(all, `"id":"s","result"`) {
				t.Error(all)
			}
			bad := mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"b","method":"bad"}`)
			if all, err := transporttest.ReadAll(bad); !strings.Contains(all+fmt.Sprint(err), told) {
				t.Error(all, err)
			}
		})
	}
}

// named has owners be the principals of callers.
func named(caller shim.Session, _ bool) Owner {
	return Owner{Name: caller.Principal, Private: caller.Principal != ""}
}

// postAs sends a request of an owner outside of any session.
func postAs(t *testing.T, tr *Transport, owner, body string) (transport.Stream, error) {
	t.Helper()
	m := transporttest.Message("", body)
	m.Caller.Principal, m.Modern = owner, m.Method != "initialize"
	return tr.Request(t.Context(), m)
}

// Servers that end soon are paused for their owner alone, from the second in a row on. One that has
// lived is started anew at once.
func TestShortLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := time.Second
		tr := opens(t, Config{Max: 9, Owner: named, Short: time.Minute}, func(p *pipe, m jsonrpc.Message) {
			answers(p, m)
			<-time.After(life)
			p.Stop()
		})
		start := func(owner string) error {
			t.Helper()
			in, err := postAs(t, tr, owner, hello)
			if err == nil {
				_, err = transporttest.ReadAll(in)
			}
			<-time.After(life + time.Millisecond)
			return err
		}
		for _, refused := range []bool{false, false, true} {
			err := start("alice")
			ue, ok := errors.AsType[*shim.UpstreamError](err)
			if refused != (err != nil) || refused && (!ok || !ue.Unsent || ue.RetryAfterMs == 0) {
				t.Errorf("error %v, refused %t", err, refused)
			}
			life = 100 * time.Millisecond
		}
		if err := start("bob"); err != nil {
			t.Errorf("another owner: %v", err)
		}
		<-time.After(time.Minute)
		life = 2 * time.Minute
		for range 5 {
			if err := start("alice"); err != nil {
				t.Error(err)
			}
		}
	})
}

// slowEnd is a pipe that takes a while to end.
type slowEnd struct {
	*pipe
	running *atomic.Int64
}

func (p *slowEnd) Close() {
	<-time.After(3 * time.Second)
	p.running.Add(-1)
}

// Servers that are ending count: there are never more than there may be, and one of an owner that
// excludes others begins when the one before has ended.
func TestEndingServersCount(t *testing.T) {
	for _, c := range []struct {
		max       int
		exclusive bool
	}{{2, false}, {9, true}} {
		synctest.Test(t, func(t *testing.T) {
			var running, most atomic.Int64
			tr := opens(t, Config{Max: c.max, Exclusive: c.exclusive, Open: func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
				most.Store(max(most.Load(), running.Add(1)))
				return &slowEnd{newPipe(answers), &running}, nil
			}}, nil)
			for range 10 {
				session := begin(t, tr)
				transporttest.Must(t, tr.EndSession(t.Context(), transporttest.Message(session, "")))
			}
			if want := map[bool]int64{false: 2, true: 1}[c.exclusive]; most.Load() != want {
				t.Errorf("%d servers at a time, want %d", most.Load(), want)
			}
		})
	}
}

// An owner has its share of the servers and no more.
func TestMaxOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := opens(t, Config{Max: 4, MaxOwner: 2, Owner: named}, func(p *pipe, m jsonrpc.Message) {
			if m.Method != "wait" {
				answers(p, m)
			}
		})
		busy := func(owner string) error {
			in, err := postAs(t, tr, owner, hello)
			if err != nil {
				return err
			}
			text(t, in)
			_, err = post(t, tr, in.Head().Session, `{"jsonrpc":"2.0","id":"w","method":"wait"}`)
			return err
		}
		for owner, want := range map[string]bool{"alice": true, "bob": true} {
			for i := range 3 {
				err := busy(owner)
				if full, ok := errors.AsType[*shim.BusyError](err); ok != (want && i == 2) {
					t.Errorf("server %d of %s: %v, %v", i, owner, full, err)
				}
			}
		}
	})
}

// What a server that several users share says to no request of theirs is shown to none of them.
func TestNobodyHearsAnothers(t *testing.T) {
	for owner, hears := range map[string]bool{"": false, "alice": true} {
		synctest.Test(t, func(t *testing.T) {
			tr := opens(t, Config{Owner: named}, func(p *pipe, m jsonrpc.Message) {
				p.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"bad row in bob's file"}}`)
				p.say(`{"jsonrpc":"2.0","method":"notifications/unknown","params":{"of":"bob"}}`)
				p.answer(m)
			})
			in, err := postAs(t, tr, owner, `{"jsonrpc":"2.0","id":"e","method":"echo"}`)
			transporttest.Must(t, err)
			if all := text(t, in); strings.Contains(all, "bob") != hears {
				t.Errorf("owner %q hears %s", owner, all)
			}
		})
	}
}

// A server may refuse a line that it has not read to its end, and end: its answer counts, and the request is not unsent.
func TestAnsweredBeforeTheEndOfTheLine(t *testing.T) {
	const refusal = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"the line is too long"}}`
	synctest.Test(t, func(t *testing.T) {
		var p *pipe
		tr := opens(t, Config{Open: func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
			p = newPipe(answers)
			return p, nil
		}}, nil)
		session := begin(t, tr)
		p.send = func() error {
			p.say(refusal)
			synctest.Wait()
			return ErrOver
		}
		in := mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"c","method":"work"}`)
		if got := text(t, in); got != refusal+"\n" {
			t.Errorf("got %s", got)
		}
	})
}
