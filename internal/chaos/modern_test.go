package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// modern is protocol version 2026-07-28, with the tasks extension or without, in which
// a client is asked by results.
type modern struct {
	transport *transport
	path      string // of the endpoint
	tasks     bool
	partials  bool // opts in to partial results
	asks      bool // can be asked
	judge     *judge
}

// newRounds is one at the modern upstream.
func newRounds(j *judge, tasks, partials bool) *modern {
	m := newModern(j, tasks, partials, true)
	m.path = pathRounds
	return m
}

func newModern(j *judge, tasks, partials, asks bool) *modern {
	return &modern{
		path:      pathChaos,
		transport: newTransport(),
		tasks:     tasks, partials: partials, asks: asks, judge: j,
	}
}

func (m *modern) name() string {
	name := "without tasks"
	switch {
	case m.partials:
		name = "extension, partial results"
	case m.tasks:
		name = "extension"
	}
	return name + at(m.path)
}

func (m *modern) endpoint() string { return m.path }

func (m *modern) reconnect() { m.transport.CloseIdleConnections() }

// do sends one request, with the capabilities of this client.
func (m *modern) do(ctx context.Context, addr, method string, params map[string]any, hear func(taskclient.Message)) (json.RawMessage, error) {
	capabilities, extensions := map[string]any{}, map[string]any{}
	if m.tasks {
		extensions[mcp.ExtensionTasks] = map[string]any{}
	}
	if m.partials {
		extensions[mcp.ExtensionPartials] = map[string]any{}
	}
	capabilities["extensions"] = extensions
	if m.asks {
		capabilities["elicitation"] = map[string]any{}
	}
	meta := map[string]any{mcp.MetaClientCapabilities: capabilities}
	if more, ok := params["_meta"].(map[string]any); ok {
		maps.Copy(meta, more)
	}
	params = maps.Clone(params)
	params["_meta"] = meta
	c := &taskclient.Client{URL: "http://" + addr + m.path, HTTP: &http.Client{Transport: m.transport}, Trace: func(msg taskclient.Message) {
		if msg.Sent {
			return
		}
		m.overhear(msg)
		if hear != nil {
			hear(msg)
		}
	}}
	return c.Do(ctx, method, params)
}

// overhear sees to it that nobody gets what was not asked for.
func (m *modern) overhear(msg taskclient.Message) {
	var n struct{ Method string }
	if json.Unmarshal(msg.Body, &n) == nil && n.Method == mcp.NotifyTaskPartial && !m.partials {
		m.judge.blame("a client that did not opt in got %.300s", msg.Body)
	}
}

// modernAnswer is the result of a call.
type modernAnswer struct {
	ResultType    string
	InputRequests map[string]inputRequest
	RequestState  string
}

// inputRequest is a question in a result or in a task.
type inputRequest struct {
	Method string
	Params struct{ Message string }
}

// names are the questions by their keys.
func names(requests map[string]inputRequest) map[string]string {
	list := map[string]string{}
	for key, r := range requests {
		list[key] = r.Params.Message
	}
	return list
}

// call calls a tool, and comes back with the answers as long as it is asked.
func (m *modern) call(ctx context.Context, u *user, addr string) (json.RawMessage, *state, error) {
	params := map[string]any{"name": u.call.tool.name, "arguments": u.call.arguments()}
	result, err := m.do(ctx, addr, mcp.MethodToolsCall, params, nil)
	for {
		if err != nil {
			return nil, nil, err
		}
		var a modernAnswer
		if err := json.Unmarshal(result, &a); err != nil {
			return nil, nil, err
		}
		switch a.ResultType {
		case mcp.ResultComplete:
			return result, nil, nil
		case mcp.ResultTask:
			var t taskclient.Task
			err := json.Unmarshal(result, &t)
			s := fromTask(t)
			return nil, &s, err
		}
		if a.ResultType != mcp.ResultInputRequired || len(a.InputRequests) == 0 || a.RequestState == "" {
			m.judge.blame("%s was answered with %.300s", u.call.id, result)
			return nil, nil, errors.New("a strange result")
		}
		u.clients.talk.said.add("calls handed back with questions" + at(m.path))
		retries, err2 := u.comeBack(ctx, names(a.InputRequests))
		if err2 != nil {
			return nil, nil, err2
		}
		params["requestState"] = a.RequestState
		result, err = m.comeBack(ctx, u, params, retries)
	}
}

// comeBack makes the call again, in one or in several ways at the same time, of which
// one at most may be accepted. A gateway that is gone may have heard the answer.
func (m *modern) comeBack(ctx context.Context, u *user, params map[string]any, retries []retry) (json.RawMessage, error) {
	results, errs := make([]json.RawMessage, len(retries)), make([]error, len(retries))
	var all sync.WaitGroup
	for i, r := range retries {
		again := maps.Clone(params)
		again["inputResponses"] = r.responses
		addrs := []string{u.addr(), u.addr(), u.addr()}
		all.Go(func() {
			for _, addr := range addrs {
				results[i], errs[i] = m.do(ctx, addr, mcp.MethodToolsCall, again, nil)
				var refused *taskclient.Error
				if errs[i] == nil || errors.As(errs[i], &refused) || u.call.rounds && !isRefused(errs[i]) {
					break // what may have been relayed is not sent twice
				}
				u.clients.talk.said.add("came back to a gateway that was gone")
				wait(ctx, pollEvery)
			}
			var refused *taskclient.Error
			var now modernAnswer
			_ = json.Unmarshal(results[i], &now)
			// What a task has been made of may end before the upstream hears of it.
			made := u.call.rounds && now.ResultType == mcp.ResultTask
			if errs[i] == nil && !made || errors.As(errs[i], &refused) && refused.Code == codeWrong {
				for _, s := range r.said {
					u.clients.talk.hear(s)
				}
			}
		})
	}
	all.Wait()
	accepted := -1
	for i := range retries {
		if errs[i] != nil {
			continue
		}
		accepted = i // of several, each waits for the same call
	}
	var refused *taskclient.Error
	switch {
	case accepted >= 0:
		return results[accepted], nil
	case errors.As(errs[0], &refused):
		return nil, errs[0]
	}
	// Whatever became of the retry, the call itself is not to be made again.
	return nil, fmt.Errorf("the gateways were gone: %v", errs[0])
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

func (m *modern) get(ctx context.Context, addr, id string) (state, error) {
	result, err := m.do(ctx, addr, mcp.MethodTasksGet, map[string]any{"taskId": id}, nil)
	if err != nil {
		return state{}, err
	}
	var t struct {
		taskclient.Task
		InputRequests map[string]inputRequest
	}
	if err := json.Unmarshal(result, &t); err != nil || t.ID != id {
		return state{}, fmt.Errorf("asked for %s, got %s (%w)", id, t.ID, err)
	}
	s := fromTask(t.Task)
	s.asked = names(t.InputRequests)
	return s, nil
}

func (m *modern) cancel(ctx context.Context, addr, id string) error {
	_, err := m.do(ctx, addr, mcp.MethodTasksCancel, map[string]any{"taskId": id}, nil)
	return err
}

// answer hands in the answer to a question of a task.
func (m *modern) answer(ctx context.Context, addr, id, key, value string, strange bool) error {
	responses := map[string]any{key: elicitResult(value)}
	if strange {
		responses["nobody-asked"] = elicitResult("nonsense")
	}
	_, err := m.do(ctx, addr, mcp.MethodTasksUpdate, map[string]any{"taskId": id, "inputResponses": responses}, nil)
	return err
}

// wait listens for the task. A gateway that cannot tell of tasks yet says nothing,
// and then the wait is as long as its patience.
func (m *modern) wait(ctx context.Context, addr, id string) error {
	ctx, heard := context.WithTimeout(ctx, listenFor)
	defer heard()
	_, err := m.do(ctx, addr, mcp.MethodListen, map[string]any{"notifications": map[string]any{"taskIds": []string{id}}}, func(msg taskclient.Message) {
		var n struct {
			Method string
			Params struct{ Status string }
		}
		if json.Unmarshal(msg.Body, &n) == nil && n.Method == mcp.NotifyTask && (state{status: n.Params.Status}).ended() {
			heard()
		}
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// listenFor is how long one wait lasts: a gateway that died without closing its
// connection never says so.
const listenFor = 2 * time.Second
