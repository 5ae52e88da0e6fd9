package upstream

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim/shimtest"
)

// lateTransport sends a call only when it has been cancelled, and keeps what comes after it.
type lateTransport struct {
	begun chan struct{}
	after chan string
}

func (lateTransport) Reach(context.Context) error { return nil }

func (lateTransport) Close(context.Context) error { return nil }

func (l lateTransport) Request(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	if m.Method == mcp.MethodInitialize {
		return &saidOnce{head: transport.Head{Session: "s", Single: true}, e: transport.Event{Message: jsonrpc.Message{
			Kind: jsonrpc.Result, ID: m.ID, Result: []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"late","version":"1"}}`),
		}}}, nil
	}
	close(l.begun)
	<-ctx.Done()
	m.NoteReached()
	return nil, ctx.Err()
}

func (l lateTransport) Notify(_ context.Context, m *transport.Outgoing) error {
	if method, _ := jsonrpc.GetString(m.Body, "method"); method == mcp.NotifyCancelled {
		l.after <- method
	}
	return nil
}

func (lateTransport) Listen(context.Context, *transport.Outgoing) (transport.Stream, error) {
	return nil, &transport.StatusError{Status: http.StatusMethodNotAllowed}
}

func (lateTransport) EndSession(context.Context, *transport.Outgoing) error { return nil }

// saidOnce is a stream with one message.
type saidOnce struct {
	head transport.Head
	e    transport.Event
}

func (s *saidOnce) Head() transport.Head   { return s.head }
func (s *saidOnce) Next() *transport.Event { return &s.e }
func (s *saidOnce) Finish()                {}
func (s *saidOnce) Close()                 {}

// A call that is cancelled while its request is about to go out is cancelled at the server.
func TestCancelledAsItGoesOut(t *testing.T) {
	l := lateTransport{begun: make(chan struct{}), after: make(chan string, 1)}
	h := newTestClient(t, Config{Transport: l, Era: EraLegacy})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-l.begun
		cancel()
	}()
	if _, err := h.Call(ctx, shimtest.Tool("echo", "late"), &shimtest.Sink{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	select {
	case <-l.after:
	default:
		t.Error("the server was not told")
	}
}

// slowTransport takes 7 s to take a call, and its server 7 s to answer.
type slowTransport struct{ lateTransport }

func (l slowTransport) Request(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	if m.Method == mcp.MethodInitialize {
		return l.lateTransport.Request(ctx, m)
	}
	<-time.After(7 * time.Second)
	return &saidLate{ctx: ctx, saidOnce: saidOnce{e: transport.Event{Message: jsonrpc.Message{Kind: jsonrpc.Result, ID: m.ID, Result: []byte(`{"content":[]}`)}}}}, nil
}

// saidLate is a stream with one message, which takes a while.
type saidLate struct {
	saidOnce
	ctx context.Context
}

func (s *saidLate) Next() *transport.Event {
	select {
	case <-time.After(7 * time.Second):
	case <-s.ctx.Done():
		s.e = transport.Event{Err: s.ctx.Err()}
	}
	return s.saidOnce.Next()
}

// A request that is taken is a sign of life: a server over stdio may have to start before, or have other work.
func TestSilenceBeginsWhenTheRequestIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := New(Config{Transport: slowTransport{}, Era: EraLegacy, IdleTimeout: 10 * time.Second})
		must(t, err)
		check(t, errorOf(h.Call(t.Context(), shimtest.Tool("echo", "late"), &shimtest.Sink{})))
		check(t, h.Close(t.Context()))
	})
}
