package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// replicas are two upstream clients in front of one server, in one session with it. The first holds
// the GET stream, and the server refuses a second.
type replicas struct {
	t       *testing.T
	s       *fake.Server
	clients [2]*ServerClient
}

func inReplicas(t *testing.T, run func(t *testing.T, r *replicas)) {
	t.Helper()
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		other, err := New(Config{Replica: "b", URL: h.wire.cfg.URL})
		must(t, err)
		baseOf(other).DialContext = baseOf(h).DialContext
		r := &replicas{t: t, s: s, clients: [2]*ServerClient{h, other}}
		shared := newSharedMap()
		for _, client := range r.clients {
			client.wire.cfg.Sessions = shared
		}
		ctx, quiet := context.WithCancel(t.Context())
		listening, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_ = h.Listen(ctx, together().Session, shim.Filter{Log: true}, func(shim.Filter) { close(listening) }, func(shim.Notification) {})
		}()
		<-listening
		s.On("GET", fake.Status(http.StatusConflict, "", ""))
		run(t, r)
		quiet()
		<-done
		check(t, other.Close(context.Background()))
	})
}

// together is a call in the session of both.
func together() shim.Request {
	r := asksIn("a", all)
	r.Session.Shared = true
	return r
}

// asked has the server ask, and returns what it gets.
func (r *replicas) asked(id string) <-chan json.RawMessage {
	got := make(chan json.RawMessage, 1)
	go func() { got <- r.s.Request(id, "elicitation/create", elicit) }()
	return got
}

// got checks what the server was told, once everything has settled.
func (r *replicas) got(want ...string) {
	r.t.Helper()
	synctest.Wait()
	var got []string
	for _, answer := range r.s.Seen("POST") {
		got = append(got, string(answer.Message))
	}
	ok := len(got) == len(want)
	for i := range min(len(want), len(got)) {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		r.t.Errorf("the server got %q, want %q", got, want)
	}
}

// sessionAsker takes on what a server asks outside of any call, as the gateway does.
type sessionAsker struct {
	client *ServerClient
	sink   *shimtest.Sink
	fail   error
	// streamless says that the client has no stream of its own.
	streamless bool
	hold       chan struct{} // what ask waits for; nil for nothing
	asked      []shim.Question
	cp         json.RawMessage
	life       context.Context
	end        context.CancelCauseFunc
	done       chan error
}

func poses(t *testing.T, client *ServerClient, sink *shimtest.Sink) *sessionAsker {
	p := &sessionAsker{client: client, sink: sink, done: make(chan error, 1)}
	p.life, p.end = context.WithCancelCause(t.Context())
	client.OnSessionQuestion(p.ask)
	return p
}

func (p *sessionAsker) ask(ctx context.Context, s shim.Session, q shim.Question, cp json.RawMessage, onCalls bool) error {
	if p.streamless && !onCalls {
		return shim.ErrNoAsk
	}
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if p.fail != nil {
		return p.fail
	}
	p.asked, p.cp = append(p.asked, q), cp
	go p.goOn(s, q)
	return nil
}

func (p *sessionAsker) goOn(s shim.Session, q shim.Question) {
	_, err := p.client.Resume(p.life, shim.Request{Method: q.Method, Session: s}, p.cp, recordedSink{p.sink})
	p.done <- err
}

// recordedSink is the sink of a record.
type recordedSink struct{ *shimtest.Sink }

func (recordedSink) RecordID() shim.ID { return homeID }

const homeID = shim.ID("0d1b3c57-5d3c-4b39-a4f2-6f7d9a3c2b1e")

// A question of a client without a stream of its own is shown by one call at a time, under one key, and by the next one
// when that ends. It waits while there is none, and the server has one answer. The server may be silent meanwhile in the
// calls that do not show it: one of them asked.
func TestQuestionIsShownByOneCallAtATime(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		home := silent()
		p := poses(t, r.clients[0], home)
		p.streamless = true
		var may [3]chan struct{}
		var calls [3]*aloft
		var sinks [3]*shimtest.Sink
		begin := func(i int) {
			may[i], sinks[i] = make(chan struct{}), silent()
			r.s.Tool("t", held(may[i], true))
			calls[i] = aloftIn(t, r.clients[0], together(), sinks[i])
		}
		shown := func(want ...int) {
			t.Helper()
			pauseFor(t, time.Second)
			for i, n := range want {
				asked := sinks[i].Asked()
				if len(asked) != n || n == 1 && asked[0].Key != shim.ShownKey(homeID, home.Asked()[0].Key) {
					t.Errorf("call %d was asked %v", i, asked)
				}
			}
		}
		end := func(i int) {
			close(may[i])
			calls[i].ended(t)
		}
		r.clients[0].wire.cfg.IdleTimeout = 500 * time.Millisecond
		begin(0)
		begin(1)
		r.asked(`1`)
		shown(0, 1)
		end(1)
		shown(1, 1)
		end(0)
		r.got()
		r.clients[0].wire.cfg.IdleTimeout = 0
		begin(2)
		shown(1, 1, 1)
		r.s.Notify("notifications/cancelled", `{"requestId":1}`)
		check(t, <-p.done)
		shown(1, 1, 1)
		r.got()
		end(2)
	})
}

// What a server asks while the replica that hears it runs no call of the session is put to
// the session's client, wherever its calls run, and the answer goes back once.
func TestAskedAlone(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		p := poses(t, r.clients[0], &shimtest.Sink{OnAsk: answering})
		<-r.asked(`1`)
		if err := <-p.done; err != nil || len(p.asked) != 1 || !r.clients[1].Resumable(p.cp) {
			t.Errorf("asked the client %v: %v", p.asked, err)
		}
		r.got(`"id":1,"result":{"to":"elicitation/create"}`)
		may := make(chan struct{})
		r.s.Tool("t", held(may, true))
		sinks := [2]*shimtest.Sink{{OnAsk: answering}, {OnAsk: answering}}
		there := aloftIn(t, r.clients[1], together(), sinks[1])
		<-r.asked(`2`)
		if err := <-p.done; err != nil || len(p.asked) != 2 || len(sinks[1].Asked()) != 0 {
			t.Errorf("with a call at the other replica: asked the client %v, the call %v: %v", p.asked, sinks[1].Asked(), err)
		}
		here := aloftIn(t, r.clients[0], together(), sinks[0])
		<-r.asked(`3`)
		if err := <-p.done; err != nil || len(p.asked) != 3 || len(sinks[0].Asked()) != 0 {
			t.Errorf("with a call here: asked the client %v, the call %v", p.asked, sinks[0].Asked())
		}
		r.got(`"id":1,"result"`, `"id":2,"result"`, `"id":3,"result"`)
		close(may)
		there.ended(t)
		here.ended(t)
	})
}

// Where the client cannot be asked, the server is refused, at once and once.
func TestAskedAloneRefused(t *testing.T) {
	for code, fail := range map[string]error{"-32601": shim.ErrNoAsk, "-32603": errors.New("away")} {
		inReplicas(t, func(t *testing.T, r *replicas) {
			p := poses(t, r.clients[0], nil)
			p.fail = fail
			<-r.asked(`1`)
			r.got(code)
			r.s.Request(`2`, "tasks/list", `{}`) // which the client did not declare
			r.got(code, "-32601")
			if len(p.asked) != 0 {
				t.Errorf("asked the client %v", p.asked)
			}
		})
	}
	inReplicas(t, func(_ *testing.T, r *replicas) { // nobody takes such questions on
		<-r.asked(`1`)
		r.got("-32601")
	})
}

// A question whose owner does not sign in again makes room for others.
func TestAskedAloneNoSignIn(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		p := poses(t, r.clients[0], silent())
		p.life = forward.With(p.life, &forward.Parts{Credential: &gone{wallet{own: "Bearer own", later: "Bearer old"}}})
		for i := range maxSessionQuestions + 1 {
			r.asked(fmt.Sprint(i))
			if err := <-p.done; err == nil {
				t.Error("no error")
			}
		}
		r.got()
	})
}

// Of a server that asks without end the client is spared.
func TestAskedAloneTooMuch(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		poses(t, r.clients[0], nil).hold = make(chan struct{})
		for i := range maxSessionQuestions + 1 {
			r.asked(fmt.Sprint(i))
			synctest.Wait()
		}
		r.got(fmt.Sprintf(`"id":%d,"error":{"code":-32603,"message":"too many`, maxSessionQuestions))
		check(t, r.clients[0].Close(context.Background()))
		synctest.Wait()
		if n := len(r.s.Seen("POST")); n != maxSessionQuestions+1 {
			t.Errorf("the server was answered %d times when the client had closed", n)
		}
	})
}

// So is the memory of the gateway, where the questions are large.
func TestAskedAloneTooLarge(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		poses(t, r.clients[0], nil).hold = make(chan struct{})
		large := `{"message":"` + strings.Repeat("x", maxWaiting/4-100) + `","requestedSchema":{"type":"object","properties":{}}}`
		for i := range 5 {
			go r.s.Request(fmt.Sprint(i), "elicitation/create", large)
			synctest.Wait()
		}
		r.got(`"id":4,"error":{"code":-32603,"message":"too large a question`)
		check(t, r.clients[0].Close(context.Background()))
	})
}

// A question that the server withdraws while it is being put to the client is not asked,
// and has no answer.
func TestAskedAloneWithdrawnAtOnce(t *testing.T) {
	for name, fail := range map[string]error{"taken on": nil, "refused": shim.ErrNoAsk} {
		t.Run(name, func(t *testing.T) {
			inReplicas(t, func(t *testing.T, r *replicas) {
				p := poses(t, r.clients[0], silent())
				p.fail, p.hold = fail, make(chan struct{})
				r.asked(`1`)
				synctest.Wait()
				r.s.Notify("notifications/cancelled", `{"requestId":1}`)
				synctest.Wait()
				close(p.hold)
				if fail == nil {
					check(t, <-p.done)
				}
				pauseFor(t, time.Minute)
				r.got()
			})
		})
	}
}

// However such a question ends, the server has one answer, unless it has withdrawn it.
func TestAskedAloneAndOver(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *replicas, p *sessionAsker)
		want error
		told []string
	}{
		"the session ends": {func(_ *replicas, p *sessionAsker) { p.end(shim.ErrCancelled) }, shim.ErrCancelled, []string{"-32603"}},
		"withdrawn": {func(r *replicas, _ *sessionAsker) {
			r.s.Notify("notifications/cancelled", `{"requestId":1}`)
		}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inReplicas(t, func(t *testing.T, r *replicas) {
				p := poses(t, r.clients[0], silent())
				r.asked(`1`)
				pauseFor(t, time.Minute)
				r.got()
				c.end(r, p)
				if err := <-p.done; !errors.Is(err, c.want) {
					t.Errorf("ended with %v", err)
				}
				r.got(c.told...)
			})
		})
	}
}

// Whoever goes on with it asks under the same key, and hears that it was withdrawn if it
// has the stream of the server.
func TestAskedAloneAndAdopted(t *testing.T) {
	for name, c := range map[string]struct {
		by   int
		sink *shimtest.Sink
		told []string
	}{
		"answered":  {1, &shimtest.Sink{OnAsk: answering}, []string{`"id":1,"result"`}},
		"withdrawn": {0, silent(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inReplicas(t, func(t *testing.T, r *replicas) {
				first := poses(t, r.clients[0], silent())
				r.asked(`1`)
				pauseFor(t, time.Minute)
				first.end(shim.ErrDetached)
				if err := <-first.done; !errors.Is(err, shim.ErrDetached) {
					t.Errorf("let go with %v", err)
				}
				r.got()
				heir := poses(t, r.clients[c.by], c.sink)
				heir.cp = first.cp
				go heir.goOn(together().Session, first.asked[0])
				pauseFor(t, time.Minute)
				if name == "withdrawn" {
					r.s.Notify("notifications/cancelled", `{"requestId":1}`)
				}
				check(t, <-heir.done)
				synctest.Wait()
				r.got(c.told...)
				if a, b := first.sink.Asked(), c.sink.Asked(); len(a) != 1 || len(b) != 1 || a[0].Key != b[0].Key {
					t.Errorf("asked %v, then %v", a, b)
				}
			})
		})
	}
}

// A question that names a task goes to the call of that task, and to no other one.
func TestQuestionOfAnotherReplicasTask(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		p := poses(t, r.clients[0], &shimtest.Sink{OnAsk: answering})
		may := make(chan struct{})
		r.s.Tool("t", held(may, true))
		other := &shimtest.Sink{OnAsk: answering}
		call := aloftIn(t, r.clients[0], together(), other) // a plain call, at the holder of the GET stream
		got := make(chan struct{})
		go func() {
			r.s.Request(`5`, "elicitation/create", `{"message":"who?","requestedSchema":{"type":"object","properties":{}},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"a-task-of-the-other-replica"}}}`)
			close(got)
		}()
		<-got
		synctest.Wait()
		if n := len(other.Asked()); n != 0 || len(p.asked) != 1 {
			t.Errorf("an unrelated call was asked %d times, and the client of the session %d times", n, len(p.asked))
		}
		close(may)
		call.ended(t)
	})
}
