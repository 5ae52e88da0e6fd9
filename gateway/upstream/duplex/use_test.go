package duplex

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// isBusy reports whether there is no room for another session.
func isBusy(t *testing.T, tr *Transport) bool {
	t.Helper()
	in, err := post(t, tr, "", hello)
	if err == nil {
		_, err = transporttest.ReadAll(in)
	}
	_, busy := errors.AsType[*shim.BusyError](err)
	if err != nil && !busy {
		t.Fatal(err)
	}
	return busy
}

// A server with a task is in use between two looks at that, though nothing is in flight.
func TestServerWithATask(t *testing.T) {
	for name, result := range map[string]string{"legacy": `{"task":{"taskId":"t"}}`, "modern": `{"taskId":"t"}`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := opens(t, Config{Idle: time.Second}, func(p *pipe, m jsonrpc.Message) {
					if m.Method == "tools/call" {
						p.say("%s", jsonrpc.AppendResult(nil, m.ID, []byte(result)))
						return
					}
					answers(p, m)
				})
				session := begin(t, tr)
				ask := func(method string) {
					t.Helper()
					text(t, mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"c","method":"`+method+`"}`))
				}
				ask("tools/call")
				for range 3 {
					<-time.After(taskUse - time.Second)
					if !isBusy(t, tr) {
						t.Fatal("the server was ended")
					}
					ask("tasks/get")
				}
				<-time.After(taskUse + time.Second)
				if isBusy(t, tr) {
					t.Error("the server is in use for ever")
				}
			})
		})
	}
}

// A GET stream keeps its server from being ended for another one as long as somebody hears it.
func TestStreamThatNobodyHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard atomic.Bool
		heard.Store(true)
		tr := opens(t, Config{}, answers)
		m := transporttest.Message(begin(t, tr), "")
		m.IsHeard = heard.Load
		in, err := tr.Listen(t.Context(), m)
		transporttest.Must(t, err)
		defer in.Close()
		if !isBusy(t, tr) {
			t.Error("a server that is heard was ended")
		}
		heard.Store(false)
		if isBusy(t, tr) {
			t.Error("a server that nobody hears is in the way")
		}
		if _, err := transporttest.Read(in); err != io.EOF {
			t.Errorf("its stream: %v", err)
		}
	})
}

// Owners that come and go are kin: a command that cannot be run is paused for all of them, and a
// server that has served for none but its own.
func TestKinOfAnOwner(t *testing.T) {
	for name, serves := range map[string]bool{"broken": false, "crashes": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var starts atomic.Int64
				owner := func(caller shim.Session, legacy bool) Owner {
					o := named(caller, legacy)
					if strings.HasPrefix(o.Name, "session") {
						o.Kin = "anonymous"
					}
					return o
				}
				tr := opens(t, Config{Max: 99, Owner: owner, Short: time.Minute}, func(p *pipe, m jsonrpc.Message) {
					starts.Add(1)
					if serves {
						p.answer(m)
					}
					p.Stop()
				})
				start := func(owner string) {
					if in, err := postAs(t, tr, owner, hello); err == nil {
						_, _ = transporttest.ReadAll(in)
					}
					synctest.Wait()
				}
				for i := range 20 {
					start("session " + string(rune('a'+i)))
				}
				if got, want := starts.Load(), map[bool]int64{false: 1, true: 20}[serves]; got != want {
					t.Errorf("%d starts, want %d", got, want)
				}
				start("alice") // who has a name
				if got, want := starts.Load(), map[bool]int64{false: 2, true: 21}[serves]; got != want {
					t.Errorf("%d starts, want %d", got, want)
				}
			})
		})
	}
}

// A server that somebody has taken for a session in between gets no request of the modern era any more, and one that
// has such a request is not taken.
func TestOneUseOfAServer(t *testing.T) {
	tr := opens(t, Config{Max: 9}, answers)
	call := func(id string) *transport.Outgoing {
		return transporttest.Message("", `{"jsonrpc":"2.0","id":"`+id+`","method":"tools/call"}`)
	}
	s, err := tr.shareOf(t.Context(), nil, Owner{})
	transporttest.Must(t, err)
	session := begin(t, tr)
	if tr.findServer(session) != s {
		t.Fatal("the server was not taken")
	}
	m := call("a")
	if err := s.sendRequest(t.Context(), newStream(t.Context(), s, m), m); err != ErrOver {
		t.Errorf("a request of the modern era goes to the session: %v", err)
	}
	echo(t, tr, session)
	other, err := tr.shareOf(t.Context(), nil, Owner{})
	if err != nil || other == s {
		t.Fatalf("the same server, %v", err)
	}
	m = call("b")
	st := newStream(t.Context(), other, m)
	defer st.Close()
	if err := other.sendRequest(t.Context(), st, m); err != nil {
		t.Error(err)
	}
	if tr.findServer(begin(t, tr)) == other {
		t.Error("a server with a request of the modern era was taken")
	}
}

// openDead opens a server that has ended.
func openDead(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
	p := newPipe(nil)
	p.Stop()
	return p, nil
}

// A server that ends before it has said anything is broken, where it was not sent what it may not know.
func TestServerThatEndsBeforeItSaysAnything(t *testing.T) {
	for _, broken := range []bool{false, true} {
		tr := opens(t, Config{Max: 9, NoProbe: broken, Open: openDead}, nil)
		_, _ = tr.shareOf(t.Context(), nil, Owner{})
		tr.running.Wait()
		tr.mu.Lock()
		if paused := len(tr.starts) > 0; paused != broken {
			t.Errorf("broken %v: the next one waits: %v", broken, paused)
		}
		tr.mu.Unlock()
	}
}

// A server that has ended takes no request, however soon that was: who asks for one gets another, or hears that there
// is none.
func TestServerThatEndsAtOnce(t *testing.T) {
	tr := opens(t, Config{Max: 9, FirstPause: 1, LastPause: 1, Open: openDead}, nil)
	over, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	for range 4 { // who hold the lock up, so that its turn may come in any order
		others.Go(func() {
			for over.Err() == nil {
				tr.findServer("")
			}
		})
	}
	for range 5000 {
		s, _ := tr.shareOf(t.Context(), nil, Owner{})
		tr.running.Wait()
		tr.mu.Lock()
		kept := len(tr.shared) + len(tr.servers)
		tr.mu.Unlock()
		if kept > 0 {
			t.Fatalf("%d dead servers are kept", kept)
		}
		if s != nil {
			if tr.takeBack(s, ""); len(tr.shared) > 0 {
				t.Fatal("a dead server is taken back")
			}
		}
	}
}

// stuck is a pipe to a server that has stopped reading.
type stuck struct {
	*pipe
	waiting *atomic.Int32
}

func (s stuck) Send(ctx context.Context, m *transport.Outgoing, heard <-chan struct{}) error {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	select {
	case <-s.over:
		return ErrOver
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Requests that leave a server which does not read leave nothing behind: it never got them.
func TestStuckServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waiting atomic.Int32
		tr := opens(t, Config{Open: func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
			return stuck{newPipe(func(*pipe, jsonrpc.Message) {}), &waiting}, nil
		}}, nil)
		for range 200 {
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			m := transporttest.Message("", `{"jsonrpc":"2.0","id":"e","method":"tools/call","params":{"name":"t"}}`)
			m.Modern, m.Method = true, mcp.MethodToolsCall
			if _, err := tr.Request(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			leave()
		}
		synctest.Wait()
		if n := waiting.Load(); n > 0 {
			t.Errorf("%d goroutines wait to cancel what was never sent", n)
		}
		_ = tr.Close(context.Background())
	})
}
