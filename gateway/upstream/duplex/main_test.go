package duplex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is a Link in memory. What is sent goes to said, which answers by say.
type pipe struct {
	said func(p *pipe, m jsonrpc.Message)
	send func() error // what Send returns; nil for no error

	out  chan []byte
	over chan struct{}
	once sync.Once
	why  *Exit
}

func newPipe(said func(*pipe, jsonrpc.Message)) *pipe {
	return &pipe{said: said, out: make(chan []byte), over: make(chan struct{})}
}

func (p *pipe) Send(_ context.Context, m *transport.Outgoing, _ <-chan struct{}) error {
	if p.send != nil {
		if err := p.send(); err != nil {
			return err
		}
	}
	m.NoteReached()
	if msg, err := jsonrpc.ParseLenient(bytes.Clone(m.Body)); err == nil {
		go p.said(p, msg)
	}
	return nil
}

func (p *pipe) say(format string, args ...any) {
	select {
	case p.out <- fmt.Appendf(nil, format, args...):
	case <-p.over:
	}
}

func (p *pipe) answer(m jsonrpc.Message) {
	p.say("%s", jsonrpc.AppendResult(nil, m.ID, []byte(`{}`)))
}

func (p *pipe) Receive() ([]byte, error) {
	select {
	case m := <-p.out:
		return m, nil
	case <-p.over:
		return nil, io.EOF
	}
}

func (p *pipe) Fate(error) *Exit {
	if p.why != nil {
		return p.why
	}
	return &Exit{Kind: shim.KindClosed, How: "ended"}
}

func (p *pipe) Stop()  { p.once.Do(func() { close(p.over) }) }
func (p *pipe) Close() {}

// opens makes a Transport whose Links are pipes to such servers.
func opens(t *testing.T, c Config, said func(*pipe, jsonrpc.Message)) *Transport {
	c.What, c.Max, c.MaxKey, c.MaxWhat = "the pipe", max(c.Max, 1), "max_pipes", "pipes"
	if c.Open == nil {
		c.Open = func(context.Context, *transport.Outgoing, *sync.WaitGroup, <-chan struct{}) (Link, error) {
			return newPipe(said), nil
		}
	}
	tr := New(c)
	t.Cleanup(func() {
		if err := tr.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return tr
}

// post sends a message in a session.
func post(t *testing.T, tr *Transport, session, body string) (transport.Stream, error) {
	t.Helper()
	return transporttest.Send(t.Context(), tr, transporttest.Message(session, body))
}

// mustPost is post for a message that is taken.
func mustPost(t *testing.T, tr *Transport, session, body string) transport.Stream {
	t.Helper()
	in, err := post(t, tr, session, body)
	transporttest.Must(t, err)
	return in
}

// text is all that is said to a request that is answered.
func text(t *testing.T, in transport.Stream) string {
	t.Helper()
	all, err := transporttest.ReadAll(in)
	if err != nil {
		t.Errorf("%s, %v", all, err)
	}
	return all
}

// listen opens the stream of what belongs to no request.
func listen(t *testing.T, tr *Transport, session string) *stream {
	t.Helper()
	in, err := tr.Listen(t.Context(), transporttest.Message(session, ""))
	transporttest.Must(t, err)
	return in.(*stream)
}

const hello = `{"jsonrpc":"2.0","id":"h","method":"initialize","params":{}}`

// begin opens a session.
func begin(t *testing.T, tr *Transport) string {
	t.Helper()
	return beginWith(t, tr, hello)
}

// beginWith opens a session by this initialize.
func beginWith(t *testing.T, tr *Transport, hello string) string {
	t.Helper()
	in := mustPost(t, tr, "", hello)
	text(t, in)
	return in.Head().Session
}

// echo wants a request to be answered.
func echo(t *testing.T, tr *Transport, session string) {
	t.Helper()
	text(t, mustPost(t, tr, session, `{"jsonrpc":"2.0","id":"e","method":"echo"}`))
}

var errTest = errors.New("that went wrong")
