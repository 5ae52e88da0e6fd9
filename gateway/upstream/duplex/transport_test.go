package duplex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
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

// A server that says more than the reader of a response takes is slowed down. After a while that
// response is given up, and the others are answered.
func TestReaderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := opens(t, Config{ReadTimeout: 3 * time.Second}, func(p *pipe, m jsonrpc.Message) {
			if m.Method != "chatter" {
				answers(p, m)
				return
			}
			for range 1000 {
				p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"c","text":%q}}`, strings.Repeat("x", 8<<10))
			}
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
		if d := time.Since(before); d != 3*time.Second {
			t.Errorf("answered after %s, want 3s", d)
		}
		b, err := io.ReadAll(slow.Body)
		ue, ok := errors.AsType[*shim.UpstreamError](err)
		if !ok || ue.Kind != KindClosed || !strings.Contains(ue.Message, "was not read for 3s") {
			t.Errorf("error %v", err)
		}
		if len(b) > maxQueue+16<<10 {
			t.Errorf("%d bytes were held", len(b))
		}
	})
}

// The pauses after servers that cannot begin grow, and end with the first that says something.
// Other errors of Open make none.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error = &Ending{Kind: KindTimeout, How: "did not begin", Err: errTest}
		tr := opens(t, Config{Open: func(context.Context, http.Header, *sync.WaitGroup, <-chan struct{}) (Link, error) {
			if failure != nil {
				return nil, failure
			}
			return newPipe(answers), nil
		}}, nil)
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			_, err := post(t, tr, "", hello)
			if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != KindTimeout || !ue.Unsent || ue.Message != "the pipe did not begin" || !errors.Is(err, errTest) {
				t.Fatalf("error %v", err)
			}
			_, err = post(t, tr, "", hello)
			ue, ok := errors.AsType[*shim.UpstreamError](err)
			if !ok || ue.Kind != KindUnreachable || !ue.Unsent || !strings.Contains(ue.Message, fmt.Sprintf("the pipe did not begin (the next attempt can be made in %ds)", want)) {
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
