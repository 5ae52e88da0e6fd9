package duplex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		slow, err := post(t, tr, session, `{"jsonrpc":"2.0","id":"c","method":"chatter"}`)
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Body.Close()
		synctest.Wait()
		before := time.Now()
		echo(t, tr, session)
		if d := time.Since(before); d != 0 {
			t.Errorf("answered after %s", d)
		}
		b, err := io.ReadAll(slow.Body)
		if err != nil || len(b) > maxQueue+16<<10 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		for _, want := range []string{`"progress":999,`, `"id":"c","result":{}`} {
			if !strings.Contains(string(b), want) {
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
		var failure error = &Ending{Kind: shim.KindTimeout, How: "did not begin", Err: errTest}
		tr := opens(t, Config{Open: func(context.Context, http.Header, *sync.WaitGroup, <-chan struct{}) (Link, error) {
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

// What a server refuses by HTTP is the response, to a message and to a session.
func TestRefusal(t *testing.T) {
	refusal := &Refusal{Response: &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody, Header: http.Header{}}}
	var refuse error
	tr := opens(t, Config{Max: 9, Open: func(context.Context, http.Header, *sync.WaitGroup, <-chan struct{}) (Link, error) {
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
		if resp, err := post(t, tr, in, body); err != nil || resp.StatusCode != http.StatusTeapot {
			t.Errorf("%s: %+v, %v", body, resp, err)
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
		tr := opens(t, Config{Max: 2, Open: func(ctx context.Context, _ http.Header, _ *sync.WaitGroup, _ <-chan struct{}) (Link, error) {
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
		tr := opens(t, Config{Open: func(context.Context, http.Header, *sync.WaitGroup, <-chan struct{}) (Link, error) {
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

// What a server asks before its client listens is held, and refused after a while. A client that
// declares nothing that can be asked is not waited for.
func TestHeldQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := make(chan string, 8)
		tr := opens(t, Config{Max: 2}, func(p *pipe, m jsonrpc.Message) {
			switch {
			case m.Method == "notifications/initialized":
				p.say(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)
			case m.Kind == jsonrpc.Request:
				p.answer(m)
			case m.Kind == jsonrpc.ErrorResponse:
				refused <- m.ID.Key()
			}
		})
		greet := func(hello string) string {
			resp, err := post(t, tr, "", hello)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			_, _ = io.ReadAll(resp.Body)
			session := resp.Header.Get("Mcp-Session-Id")
			if _, err := post(t, tr, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return session
		}
		const able = `{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"capabilities":{"roots":{}}}}`
		session := greet(able)
		<-time.After(holdFor / 2)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x.invalid", nil)
		req.Header.Set("Mcp-Session-Id", session)
		get, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer get.Body.Close()
		b := make([]byte, 1<<10)
		if n, err := get.Body.Read(b); err != nil || !strings.Contains(string(b[:n]), "roots/list") {
			t.Errorf("%q, %v", b[:n], err)
		}
		<-time.After(2 * holdFor)
		if len(refused) != 0 {
			t.Error("the question was refused")
		}
		began := time.Now()
		greet(able)
		<-refused
		if d := time.Since(began); d != holdFor {
			t.Errorf("refused after %s", d)
		}
		began = time.Now()
		tr2 := opens(t, Config{}, func(p *pipe, m jsonrpc.Message) {
			if m.Kind == jsonrpc.Request {
				p.say(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)
				p.answer(m)
			} else if m.Kind == jsonrpc.ErrorResponse {
				refused <- m.ID.Key()
			}
		})
		begin(t, tr2)
		<-refused
		if d := time.Since(began); d != 0 {
			t.Errorf("refused after %s", d)
		}
	})
}

// A server written by hand answers a notification with an error. That ends no request; an error
// without an id in answer to the only request does.
func TestErrorsWithoutID(t *testing.T) {
	const nobodys = `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid"}}`
	synctest.Test(t, func(t *testing.T) {
		tr := opens(t, Config{}, func(p *pipe, m jsonrpc.Message) {
			switch {
			case m.Kind == jsonrpc.Notification, m.Method == "bad":
				p.say(nobodys)
			case m.Method == "slow":
				<-time.After(time.Second)
				p.answer(m)
			default:
				p.answer(m)
			}
		})
		session := begin(t, tr)
		slow, err := post(t, tr, session, `{"jsonrpc":"2.0","id":"s","method":"slow"}`)
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Body.Close()
		if _, err := post(t, tr, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(slow.Body); err != nil || !strings.Contains(string(b), `"id":"s","result"`) {
			t.Errorf("%s, %v", b, err)
		}
		bad, err := post(t, tr, session, `{"jsonrpc":"2.0","id":"b","method":"bad"}`)
		if err != nil {
			t.Fatal(err)
		}
		defer bad.Body.Close()
		if b, err := io.ReadAll(bad.Body); err != nil || !strings.Contains(string(b), "invalid") {
			t.Errorf("%s, %v", b, err)
		}
	})
}

// ownerKey is the key of the name of the owner in the context of a request.
type ownerKey struct{}

// as is the context of a request of an owner.
func as(t *testing.T, name string) context.Context {
	return context.WithValue(t.Context(), ownerKey{}, name)
}

// named has owners be those that the context of a request names.
func named(ctx context.Context, _ bool) Owner {
	name, _ := ctx.Value(ownerKey{}).(string)
	return Owner{Name: name, Private: name != ""}
}

// postAs posts a message of an owner outside of any session.
func postAs(t *testing.T, tr *Transport, owner, body string, header ...string) (*http.Response, error) {
	t.Helper()
	req, _ := http.NewRequestWithContext(as(t, owner), http.MethodPost, "http://x.invalid", strings.NewReader(body))
	for _, name := range header {
		req.Header.Set(name, "x")
	}
	return tr.RoundTrip(req)
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
			resp, err := postAs(t, tr, owner, hello)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
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
			tr := opens(t, Config{Max: c.max, Exclusive: c.exclusive, Open: func(context.Context, http.Header, *sync.WaitGroup, <-chan struct{}) (Link, error) {
				most.Store(max(most.Load(), running.Add(1)))
				return &slowEnd{newPipe(answers), &running}, nil
			}}, nil)
			for range 10 {
				session := begin(t, tr)
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://x.invalid", nil)
				req.Header.Set("Mcp-Session-Id", session)
				if _, err := tr.RoundTrip(req); err != nil {
					t.Fatal(err)
				}
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
			resp, err := postAs(t, tr, owner, hello)
			if err != nil {
				return err
			}
			_, _ = io.ReadAll(resp.Body)
			_, err = post(t, tr, resp.Header.Get("Mcp-Session-Id"), `{"jsonrpc":"2.0","id":"w","method":"wait"}`)
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
			resp, err := postAs(t, tr, owner, `{"jsonrpc":"2.0","id":"e","method":"echo"}`, "Mcp-Method")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || strings.Contains(string(b), "bob") != hears {
				t.Errorf("owner %q hears %s, %v", owner, b, err)
			}
		})
	}
}
