package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

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

func (l lateTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: http.StatusAccepted, Header: make(http.Header), Body: http.NoBody, Request: r}
	if r.Method != http.MethodPost {
		resp.StatusCode = http.StatusMethodNotAllowed
		return resp, nil
	}
	body, _ := io.ReadAll(r.Body)
	m, err := jsonrpc.Parse(body)
	if err != nil {
		return nil, err
	}
	switch m.Method {
	case mcp.MethodInitialize:
		answer := jsonrpc.AppendResult(nil, m.ID, []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"late","version":"1"}}`))
		resp.StatusCode, resp.Body = http.StatusOK, io.NopCloser(strings.NewReader(string(answer)))
		resp.Header.Set("Content-Type", mcp.TypeJSON)
		resp.Header.Set(mcp.HeaderSession, "s")
	case mcp.MethodToolsCall:
		close(l.begun)
		<-r.Context().Done()
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
		return nil, r.Context().Err()
	case mcp.NotifyCancelled:
		l.after <- m.Method
	}
	return resp, nil
}

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
