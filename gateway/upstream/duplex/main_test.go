package duplex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"go.uber.org/goleak"

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
	why  *Ending
}

func newPipe(said func(*pipe, jsonrpc.Message)) *pipe {
	return &pipe{said: said, out: make(chan []byte), over: make(chan struct{})}
}

func (p *pipe) Send(ctx context.Context, m Message) error {
	if p.send != nil {
		if err := p.send(); err != nil {
			return err
		}
	}
	Reached(ctx)
	if msg, err := jsonrpc.ParseLenient(m.Bytes); err == nil {
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

func (p *pipe) Fate(error) *Ending {
	if p.why != nil {
		return p.why
	}
	return &Ending{Kind: shim.KindClosed, How: "ended"}
}

func (p *pipe) Stop()  { p.once.Do(func() { close(p.over) }) }
func (p *pipe) Close() {}

// opens makes a Transport whose Links are pipes to such servers.
func opens(t *testing.T, c Config, said func(*pipe, jsonrpc.Message)) *Transport {
	c.What, c.Max, c.MaxKey, c.MaxWhat = "the pipe", max(c.Max, 1), "max_pipes", "pipes"
	if c.Open == nil {
		c.Open = func(context.Context, http.Header, *sync.WaitGroup, <-chan struct{}) (Link, error) {
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

// post posts a message in a session.
func post(t *testing.T, tr *Transport, session, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x.invalid", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	return tr.RoundTrip(req)
}

const hello = `{"jsonrpc":"2.0","id":"h","method":"initialize","params":{}}`

// begin opens a session.
func begin(t *testing.T, tr *Transport) string {
	t.Helper()
	resp, err := post(t, tr, "", hello)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.Header.Get("Mcp-Session-Id")
}

// echo wants a request to be answered.
func echo(t *testing.T, tr *Transport, session string) {
	t.Helper()
	resp, err := post(t, tr, session, `{"jsonrpc":"2.0","id":"e","method":"echo"}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %q, %v", resp.Status, b, err)
	}
}

var errTest = errors.New("that went wrong")
