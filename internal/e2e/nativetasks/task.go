package nativetasks

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
)

// What a task says of itself.
const (
	ttl          = time.Minute
	pollInterval = 100 * time.Millisecond
)

// task is one call that runs as a task.
type task struct {
	id      string
	created time.Time
	stop    context.CancelFunc
	read    chan struct{} // closed once its client has asked for it
	once    sync.Once     // closes read

	mu       sync.Mutex
	updated  time.Time
	status   string
	message  string
	result   json.RawMessage
	failure  error
	open     map[string]json.RawMessage // questions
	answers  map[string]json.RawMessage
	answered chan struct{} // closed once nothing is open
}

func newTask(id string, stop context.CancelFunc) *task {
	now := time.Now()
	return &task{id: id, created: now, updated: now, stop: stop, read: make(chan struct{}), status: "working"}
}

// queued waits until the task begins: when its client has asked for it, or a second after it was
// made. So whoever cancels a task that runs knows of it.
func (t *task) queued(ctx context.Context) {
	late := time.NewTimer(time.Second)
	defer late.Stop()
	select {
	case <-t.read:
	case <-late.C:
	case <-ctx.Done():
	}
}

// view is the task as a result (T14, T22); with what belongs to its status, if whole.
func (t *task) view(resultType string, whole bool) map[string]any {
	if whole {
		t.once.Do(func() { close(t.read) })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := map[string]any{
		"resultType": resultType, "taskId": t.id, "status": t.status,
		"createdAt": t.created.UTC().Format(time.RFC3339Nano), "lastUpdatedAt": t.updated.UTC().Format(time.RFC3339Nano),
		"ttlMs": ttl.Milliseconds(), "pollIntervalMs": pollInterval.Milliseconds(),
	}
	if t.message != "" {
		v["statusMessage"] = t.message
	}
	switch {
	case !whole:
	case t.status == "input_required":
		v["inputRequests"] = maps.Clone(t.open)
	case t.result != nil:
		v["result"] = t.result
	case t.failure != nil:
		v["error"] = t.failure
	}
	return v
}

// change changes a task that has not ended.
func (t *task) change(how func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status == "working" || t.status == "input_required" {
		how()
		t.updated = time.Now()
	}
}

// end is the last change of a task (T33).
func (t *task) end(how func()) { t.change(how) }

// run makes the call, again with the answers for as long as it asks.
func (t *task) run(ctx context.Context, conn sdk.Connection, args map[string]json.RawMessage) {
	done := context.AfterFunc(ctx, func() {
		cancelled := &jsonrpc.Request{Method: mcp.NotifyCancelled, Params: json.RawMessage(`{"requestId":1}`)}
		_ = conn.Write(context.Background(), cancelled)
		_ = conn.Close()
	})
	defer done()
	args["_meta"] = withToken(args["_meta"])
	for {
		result, err := t.call(conn, args)
		var failure *jsonrpc.Error
		switch {
		case errors.As(err, &failure):
			t.end(func() { t.status, t.failure, t.message = "failed", failure, failure.Message }) // T26
			return
		case err != nil:
			t.end(func() {
				t.status, t.failure = "failed", &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
			})
			return
		}
		var asks struct {
			ResultType    string
			InputRequests map[string]json.RawMessage
			RequestState  json.RawMessage
		}
		if err := json.Unmarshal(result, &asks); err != nil || asks.ResultType != mcp.ResultInputRequired {
			t.end(func() { t.status, t.result = "completed", result }) // T25, T28
			return
		}
		responses, err := t.ask(ctx, asks.InputRequests)
		if err != nil {
			return
		}
		args["inputResponses"] = responses
		delete(args, "requestState")
		if asks.RequestState != nil {
			args["requestState"] = asks.RequestState
		}
	}
}

// withToken asks for progress.
func withToken(meta json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	_ = json.Unmarshal(meta, &members)
	members[mcp.MetaProgressToken] = json.RawMessage(`"task"`)
	with, _ := json.Marshal(members)
	return with
}

// call makes one call of the server of the SDK.
func (t *task) call(conn sdk.Connection, args map[string]json.RawMessage) (json.RawMessage, error) {
	body, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	id, err := jsonrpc.MakeID(float64(1))
	if err != nil {
		return nil, err
	}
	ctx := context.Background() // the end of the task closes the connection
	if err := conn.Write(ctx, &jsonrpc.Request{ID: id, Method: mcp.MethodToolsCall, Params: body}); err != nil {
		return nil, err
	}
	for {
		m, err := conn.Read(ctx)
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case *jsonrpc.Response:
			return m.Result, m.Error
		case *jsonrpc.Request:
			var said struct{ Message string }
			if m.Method == mcp.NotifyProgress && json.Unmarshal(m.Params, &said) == nil {
				t.change(func() { t.message = said.Message })
			}
		}
	}
}

// ask opens questions, and waits for all answers (T24, T38).
func (t *task) ask(ctx context.Context, questions map[string]json.RawMessage) (json.RawMessage, error) {
	t.mu.Lock()
	t.open, t.answers, t.answered = maps.Clone(questions), map[string]json.RawMessage{}, make(chan struct{})
	answered := t.answered
	t.mu.Unlock()
	t.change(func() { t.status = "input_required" })
	select {
	case <-answered:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return json.Marshal(t.answers)
}

// take takes answers to what is open; others are ignored (T36, T37).
func (t *task) take(answers map[string]json.RawMessage) {
	t.change(func() {
		for key, answer := range answers {
			if _, ok := t.open[key]; ok {
				delete(t.open, key)
				t.answers[key] = answer
			}
		}
		if t.status == "input_required" && len(t.open) == 0 {
			t.status = "working"
			close(t.answered)
		}
	})
}
