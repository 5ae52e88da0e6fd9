package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// legacy is the dialect of protocol version 2025-11-25, spoken in one session that
// every gateway has to know.
type legacy struct {
	transport *transport
	serial    atomic.Int64
	path      string  // of the endpoint
	plain     bool    // calls without asking for a task
	viewer    *viewer // takes partial results; nil for a client that does not
	judge     *judge
	// asked is called with what the client is asked on any of its streams; nil for a
	// client that cannot be asked.
	asked func(name, key string, give giving)

	renewing sync.Mutex // held by whoever begins a session in place of one that is unknown

	mu      sync.Mutex
	session string
	begun   time.Time // when the session had begun
}

func newLegacy(j *judge) *legacy {
	return &legacy{path: pathChaos, judge: j, transport: newTransport()}
}

// another is the same client, with connections and a session of its own.
func (l *legacy) another() *legacy {
	return &legacy{transport: l.transport.another(), path: l.path, viewer: l.viewer, asked: l.asked, judge: l.judge}
}

func (l *legacy) name() string {
	name := "legacy"
	switch {
	case l.plain:
		name += ", without tasks"
	case l.viewer != nil:
		name += ", partial results"
	}
	return name + at(l.path)
}

func (l *legacy) endpoint() string { return l.path }

func (l *legacy) reconnect() { l.transport.CloseIdleConnections() }

// begin opens the session, on any gateway.
func (l *legacy) begin(ctx context.Context, addr string) error {
	_, err := l.open(ctx, addr)
	return err
}

// open is begin with what the gateway says of itself.
func (l *legacy) open(ctx context.Context, addr string) (json.RawMessage, error) {
	tasks := map[string]any{"list": map[string]any{}, "cancel": map[string]any{}}
	if l.viewer != nil {
		tasks["streaming"] = map[string]any{"partial": map[string]any{}}
	}
	capabilities := map[string]any{"tasks": tasks}
	if l.asked != nil {
		capabilities["elicitation"] = map[string]any{}
	}
	result, header, err := l.send(ctx, addr, nil, mcp.MethodInitialize, map[string]any{
		"protocolVersion": mcp.Version20251125, "clientInfo": map[string]any{"name": "chaos", "version": "1"},
		"capabilities": capabilities,
	})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session = header.Get(mcp.HeaderSession); l.session == "" {
		return nil, errors.New("initialize was answered without a session")
	}
	l.begun = time.Now()
	return result, nil
}

// current is the session, and when it had begun.
func (l *legacy) current() (session string, begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session, l.begun
}

// renew begins a session in place of one that is unknown, which a store may have forgotten.
func (l *legacy) renew(ctx context.Context, addr, unknown string, begun time.Time) error {
	if !l.judge.mayForgetSession(begun) {
		return &taskclient.Error{Code: codeInvalid, Message: "the session is unknown", Status: http.StatusNotFound}
	}
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if now, _ := l.current(); now != unknown {
		return nil
	}
	next := l.another()
	defer next.reconnect()
	if err := next.begin(ctx, addr); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session, l.begun = next.session, next.begun
	return nil
}

// do sends a request and returns its result.
func (l *legacy) do(ctx context.Context, addr, method string, params map[string]any) (json.RawMessage, error) {
	result, _, err := l.send(ctx, addr, nil, method, params)
	return result, err
}

// message is a request.
func (l *legacy) message(method string, params map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{"jsonrpc": "2.0", "id": l.serial.Add(1), "method": method, "params": params})
}

// send is do with the head of the answer. What comes on its stream is counted.
func (l *legacy) send(ctx context.Context, addr string, n *counter, method string, params map[string]any) (json.RawMessage, http.Header, error) {
	body, err := l.message(method, params)
	if err != nil {
		return nil, nil, err
	}
	resp, err := l.request(ctx, http.MethodPost, addr, "", body)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := l.read(resp, n)
	return answer, resp.Header, err
}

// request does one request in the session; last is the id of the event to go on after. Where the session is
// unknown it goes out in another one, in which there is nothing to go on with.
func (l *legacy) request(ctx context.Context, method, addr, last string, body []byte) (*http.Response, error) {
	session, begun := l.current()
	resp, err := l.requestIn(ctx, session, method, addr, last, body)
	if err != nil || resp.StatusCode != http.StatusNotFound {
		return resp, err
	}
	resp.Body.Close()
	if err := l.renew(ctx, addr, session, begun); err != nil {
		return nil, err
	}
	if last != "" {
		return nil, errForgotten
	}
	session, _ = l.current()
	return l.requestIn(ctx, session, method, addr, "", body)
}

// errForgotten is about a stream of a session that the store has forgotten.
var errForgotten = errors.New("the stream went with its session")

func (l *legacy) requestIn(ctx context.Context, session, method, addr, last string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+l.path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	accept := mcp.TypeAccept
	if method == http.MethodGet {
		accept = mcp.TypeSSE
	} else {
		req.Header.Set("Content-Type", mcp.TypeJSON)
	}
	req.Header.Set("Accept", accept)
	if last != "" {
		req.Header.Set(mcp.HeaderLastEventID, last)
	}
	if session != "" {
		req.Header.Set(mcp.HeaderSession, session)
		req.Header.Set(mcp.HeaderProtocolVersion, mcp.Version20251125)
	}
	return l.transport.RoundTrip(req)
}

// read reads a response, JSON or events, until the answer.
func (l *legacy) read(resp *http.Response, n *counter) (json.RawMessage, error) {
	if resp.Header.Get("Content-Type") != mcp.TypeSSE {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		result, final, err := legacyMessage(resp, body)
		if err == nil && !final {
			err = taskclient.ErrNoAnswer
		}
		return result, err
	}
	last := ""
	events := eventstream.NewReader(resp.Body, 64<<20)
	for {
		e, err := events.Next()
		if errors.Is(err, io.EOF) {
			err = taskclient.ErrNoAnswer
		}
		if err != nil {
			return nil, &brokenStream{last, err}
		}
		if e.ID != "" {
			last = e.ID
		}
		if len(bytes.TrimSpace(e.Data)) == 0 {
			continue // it only tells that the stream can be resumed
		}
		data := bytes.Clone(e.Data)
		n.hear(data)
		l.overhear(data)
		if result, final, err := legacyMessage(resp, data); err != nil || final {
			return result, err
		}
	}
}

// legacyMessage reads one message; final says that it is the answer.
func legacyMessage(resp *http.Response, body []byte) (result json.RawMessage, final bool, err error) {
	var m struct {
		Method string
		Result json.RawMessage
		Error  *taskclient.Error
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, false, fmt.Errorf("HTTP %d: %w in %.200q", resp.StatusCode, err, body)
	}
	if m.Error != nil {
		m.Error.Status = resp.StatusCode
		return nil, true, m.Error
	}
	return m.Result, m.Method == "", nil
}

// legacyTask is a Task object.
type legacyTask struct {
	TaskID        string
	Status        string
	StatusMessage string
	CreatedAt     time.Time
	LastUpdatedAt time.Time
	TTL           int64
}

func (t legacyTask) state() state {
	return state{
		id: t.TaskID, status: t.Status, message: t.StatusMessage, created: t.CreatedAt, updated: t.LastUpdatedAt,
		ttl: time.Duration(t.TTL) * time.Millisecond,
	}
}

// call asks for a task, unless the client knows nothing of them.
func (l *legacy) call(ctx context.Context, u *user, addr string) (json.RawMessage, *state, error) {
	params := map[string]any{"name": u.call.tool.name, "arguments": u.call.arguments()}
	if l.plain {
		result, err := l.stay(ctx, u, addr, params)
		return result, nil, err
	}
	params["task"] = map[string]any{"ttl": time.Hour.Milliseconds()}
	result, err := l.do(ctx, addr, mcp.MethodToolsCall, params)
	if err != nil {
		return nil, nil, err
	}
	var created struct{ Task *legacyTask }
	if err := json.Unmarshal(result, &created); err != nil || created.Task == nil {
		return nil, nil, fmt.Errorf("no task was made: %.200q %w", result, err)
	}
	s := created.Task.state()
	return nil, &s, nil
}

// get asks for the status and, of a task that has ended, for the result, which
// this dialect has apart.
func (l *legacy) get(ctx context.Context, addr, id string) (state, error) {
	result, err := l.do(ctx, addr, mcp.MethodTasksGet, map[string]any{"taskId": id})
	if err != nil {
		return state{}, err
	}
	var t legacyTask
	if err := json.Unmarshal(result, &t); err != nil || t.TaskID != id {
		return state{}, fmt.Errorf("asked for %s, got %.200q (%w)", id, result, err)
	}
	s := t.state()
	if !s.ended() || s.status == taskclient.Cancelled {
		return s, nil
	}
	s.result, err = l.do(ctx, addr, mcp.MethodTasksResult, map[string]any{"taskId": id})
	var failed *taskclient.Error
	switch {
	case err == nil:
		// A tool's own error is a failed task here, and a completed one in the extension.
		s.status = taskclient.Completed
	case errors.As(err, &failed) && failed.Message == s.message:
		s.err, err = failed, nil
		s.err.Status = 0
	}
	return s, err
}

// wait blocks on tasks/result.
func (l *legacy) wait(ctx context.Context, addr, id string) error {
	ctx, stop := context.WithTimeout(ctx, listenFor)
	defer stop()
	_, err := l.do(ctx, addr, mcp.MethodTasksResult, map[string]any{"taskId": id})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// cancel is refused for a task that has ended, which is as good.
func (l *legacy) cancel(ctx context.Context, addr, id string) error {
	_, err := l.do(ctx, addr, mcp.MethodTasksCancel, map[string]any{"taskId": id})
	var refused *taskclient.Error
	if errors.As(err, &refused) && refused.Code == codeInvalid && refused.Status != http.StatusNotFound {
		s, again := l.get(ctx, addr, id)
		if again != nil || s.ended() {
			return again
		}
	}
	return err
}
