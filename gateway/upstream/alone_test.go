package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// poser takes on what a server asks outside of any call, as the gateway does.
type poser struct {
	leg   *HTTP
	sink  *shimtest.Sink
	fail  error
	posed []shim.Question
	cp    json.RawMessage
	life  context.Context
	end   context.CancelCauseFunc
	done  chan error
}

func poses(t *testing.T, leg *HTTP, sink *shimtest.Sink) *poser {
	p := &poser{leg: leg, sink: sink, done: make(chan error, 1)}
	p.life, p.end = context.WithCancelCause(t.Context())
	leg.OnPose(p.pose)
	return p
}

func (p *poser) pose(_ context.Context, s shim.Session, q shim.Question, cp json.RawMessage) error {
	if p.fail != nil {
		return p.fail
	}
	p.posed, p.cp = append(p.posed, q), cp
	go p.goOn(s, q)
	return nil
}

func (p *poser) goOn(s shim.Session, q shim.Question) {
	_, err := p.leg.Resume(p.life, shim.Request{Method: q.Method, Session: s}, p.cp, p.sink)
	p.done <- err
}

// What a server asks while there is no call of the session anywhere is put to the
// session's client, by the replica that hears it, and the answer goes back once.
func TestAskedAlone(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		p := poses(t, r.legs[0], &shimtest.Sink{OnAsk: answering})
		<-r.asked(`1`)
		if err := <-p.done; err != nil || len(p.posed) != 1 || !r.legs[1].Resumable(p.cp) {
			t.Errorf("posed %v: %v", p.posed, err)
		}
		r.got(`"id":1,"result":{"to":"elicitation/create"}`)
		may := make(chan struct{})
		r.s.Tool("t", held(may, true))
		sink := &shimtest.Sink{OnAsk: answering}
		f := aloftIn(t, r.legs[1], together(), sink)
		<-r.asked(`2`)
		if len(p.posed) != 1 || len(sink.Asked()) != 1 {
			t.Errorf("with a call: posed %v, asked %v", p.posed, sink.Asked())
		}
		close(may)
		f.ended(t)
	})
}

// Where the client cannot be asked, the server is refused.
func TestAskedAloneRefused(t *testing.T) {
	for code, fail := range map[string]error{"-32601": shim.ErrNoAsk, "-32603": errors.New("away")} {
		inReplicas(t, func(t *testing.T, r *replicas) {
			poses(t, r.legs[0], nil).fail = fail
			<-r.asked(`1`)
			r.got(code)
		})
	}
}

// However such a question ends, the server has one answer, unless it has withdrawn it.
func TestAskedAloneAndOver(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *replicas, p *poser)
		want error
		told []string
	}{
		"the session ends": {func(_ *replicas, p *poser) { p.end(shim.ErrCancelled) }, shim.ErrCancelled, []string{"-32603"}},
		"withdrawn": {func(r *replicas, _ *poser) {
			r.s.Notify("notifications/cancelled", `{"requestId":1}`)
		}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inReplicas(t, func(t *testing.T, r *replicas) {
				p := poses(t, r.legs[0], silent())
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

// Another replica goes on with it, under the same key, and hears there too that it was
// withdrawn.
func TestAskedAloneAndAdopted(t *testing.T) {
	for name, c := range map[string]struct {
		sink *shimtest.Sink
		told []string
	}{
		"answered":  {&shimtest.Sink{OnAsk: answering}, []string{`"id":1,"result"`}},
		"withdrawn": {silent(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inReplicas(t, func(t *testing.T, r *replicas) {
				first := poses(t, r.legs[0], silent())
				r.asked(`1`)
				pauseFor(t, time.Minute)
				first.end(shim.ErrDetached)
				if err := <-first.done; !errors.Is(err, shim.ErrDetached) {
					t.Errorf("let go with %v", err)
				}
				r.got()
				heir := poses(t, r.legs[1], c.sink)
				heir.cp = first.cp
				go heir.goOn(together().Session, first.posed[0])
				pauseFor(t, time.Minute)
				if name == "withdrawn" {
					r.s.Notify("notifications/cancelled", `{"requestId":1}`)
				}
				if err := <-heir.done; err != nil {
					t.Error(err)
				}
				synctest.Wait()
				r.got(c.told...)
				if a, b := first.sink.Asked(), c.sink.Asked(); len(a) != 1 || len(b) != 1 || a[0].Key != b[0].Key {
					t.Errorf("asked %v, then %v", a, b)
				}
			})
		})
	}
}
