package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// dialect is how a client speaks of tasks. A gateway that answers with a JSON-RPC
// error is a *taskclient.Error; any other error says that no answer came.
type dialect interface {
	name() string
	// call calls a tool: either its result or the task that was made of it.
	call(ctx context.Context, addr, tool string, arguments map[string]any) (json.RawMessage, *state, error)
	// get asks for the state of a task.
	get(ctx context.Context, addr, id string) (state, error)
	// wait returns once the gateway says that the task has changed or ended, or has
	// ended the wait for a reason of its own.
	wait(ctx context.Context, addr, id string) error
	cancel(ctx context.Context, addr, id string) error
	// reconnect drops all connections.
	reconnect()
}

// state is a task as a client sees it, in the words of the extension.
type state struct {
	id      string
	status  string
	message string
	created time.Time
	updated time.Time
	ttl     time.Duration
	result  json.RawMessage
	err     *taskclient.Error
}

// ended reports whether the state is final.
func (s state) ended() bool {
	return s.status == taskclient.Completed || s.status == taskclient.Failed || s.status == taskclient.Cancelled
}

// extension is the dialect of the tasks extension, protocol version 2026-07-28.
type extension struct {
	transport *http.Transport
}

func newExtension() *extension {
	return &extension{transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second}}
}

func (e *extension) name() string { return "extension" }

func (e *extension) client(addr string) *taskclient.Client {
	return &taskclient.Client{URL: "http://" + addr + "/mcp", Tasks: true, HTTP: &http.Client{Transport: e.transport}}
}

func (e *extension) reconnect() { e.transport.CloseIdleConnections() }

func (e *extension) call(ctx context.Context, addr, tool string, arguments map[string]any) (json.RawMessage, *state, error) {
	result, task, err := e.client(addr).CallTool(ctx, tool, arguments)
	if task == nil {
		return result, nil, err
	}
	s := fromTask(*task)
	return nil, &s, err
}

func fromTask(t taskclient.Task) state {
	s := state{
		id: t.ID, status: t.Status, message: t.StatusMessage, created: t.CreatedAt, updated: t.LastUpdatedAt,
		result: t.Result, err: t.Error,
	}
	if t.TTLMs != nil {
		s.ttl = time.Duration(*t.TTLMs) * time.Millisecond
	}
	return s
}

func (e *extension) get(ctx context.Context, addr, id string) (state, error) {
	t, err := e.client(addr).Get(ctx, id)
	if err == nil && t.ID != id {
		err = fmt.Errorf("asked for %s, got %s", id, t.ID)
	}
	return fromTask(t), err
}

func (e *extension) cancel(ctx context.Context, addr, id string) error {
	return e.client(addr).Cancel(ctx, id)
}

// wait listens for the task. A gateway that cannot tell of tasks yet says nothing,
// and then the wait is as long as its patience.
func (e *extension) wait(ctx context.Context, addr, id string) error {
	ctx, heard := context.WithTimeout(ctx, listenFor)
	defer heard()
	c := e.client(addr)
	c.Trace = func(m taskclient.Message) {
		var n struct {
			Method string
			Params struct{ Status string }
		}
		if !m.Sent && json.Unmarshal(m.Body, &n) == nil && n.Method == mcp.NotifyTask && (state{status: n.Params.Status}).ended() {
			heard()
		}
	}
	_, err := c.Do(ctx, mcp.MethodListen, map[string]any{"notifications": map[string]any{"taskIds": []string{id}}})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// listenFor is how long one wait lasts: a gateway that died without closing its
// connection never says so.
const listenFor = 2 * time.Second
