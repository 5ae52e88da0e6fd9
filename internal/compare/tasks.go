package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"taskgate/internal/compare/peers"
	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// runTasks asks each peer for what tasks have, in both dialects, in front of a server that knows nothing of them.
func runTasks(ctx context.Context, o *options) error {
	return each(o, "tasks", o.together, twice, func(p peers.Peer) ([]passage, error) {
		if p.Way == peers.ForClient || p.SSE {
			return nil, errors.New("not run: this row speaks Streamable HTTP itself")
		}
		st, err := newTaskStage(ctx, o, p)
		if st != nil {
			defer st.end()
		}
		if err != nil {
			return nil, err
		}
		first, second := st.dialects()
		var found []passage
		for _, f := range taskFeatures {
			old, recent := verdictOf(f.try(ctx, first)), verdictOf(f.try(ctx, second))
			found = append(found, passage{Feature: f.name, Legacy: old, Modern: recent})
		}
		log.Printf("%s: %+v", p.Name, found)
		return found, nil
	})
}

func verdictOf(err error) string {
	if err != nil {
		return "no: " + oneLine(err.Error())
	}
	return "yes"
}

// newTaskStage starts two replicas: the features have to work at any of them.
func newTaskStage(ctx context.Context, o *options, p peers.Peer) (*stage, error) {
	l, err := newLab(o, p)
	if err != nil {
		return nil, err
	}
	st := &stage{lab: l, wire: newTCPWire()}
	if p.Name == "taskgate" {
		if st.redis, err = startRedis(ctx, l.dir); err != nil {
			return st, err
		}
		l.redis = st.redis.url()
	}
	if err := l.startReady(ctx); err != nil {
		return st, err
	}
	if p.Way == peers.NoPeer {
		return st, nil
	}
	st.second, err = newLab(o, p)
	if err != nil {
		return st, err
	}
	st.second.redis, st.second.events, st.second.serverAddr, st.second.server = l.redis, l.events, l.serverAddr, l.server
	if err := st.second.startGateway(ctx); err != nil {
		return st, err
	}
	return st, st.second.ready(ctx)
}

// dialect is one way to speak of tasks, at two replicas.
type dialect struct {
	here, there *rawClient
	legacy      bool
}

func (st *stage) dialects() (old, recent *dialect) {
	there := st.url()
	if st.second != nil {
		there = st.second.url()
	}
	return &dialect{&rawClient{url: st.url(), version: legacy}, &rawClient{url: there, version: legacy}, true},
		&dialect{&rawClient{url: st.url(), version: modern}, &rawClient{url: there, version: modern}, false}
}

// taskFeatures are asked for one after the other, each with tasks of its own.
var taskFeatures = []struct {
	name string
	try  func(context.Context, *dialect) error
}{
	{"a call becomes a task, whose result can be fetched", func(ctx context.Context, d *dialect) error {
		id, err := d.make(ctx, "try_work", map[string]any{"seconds": 2})
		if err != nil {
			return err
		}
		return d.result(ctx, d.here, id)
	}},
	{"at another replica, too", func(ctx context.Context, d *dialect) error {
		id, err := d.make(ctx, "try_work", map[string]any{"seconds": 2})
		if err != nil {
			return err
		}
		if d.here.url == d.there.url {
			return errors.New("there is only one")
		}
		return d.result(ctx, d.there, id)
	}},
	{"`tasks/cancel`", func(ctx context.Context, d *dialect) error {
		id, err := d.make(ctx, "try_work", map[string]any{"seconds": 60})
		if err != nil {
			return err
		}
		if _, err := d.here.do(ctx, "tasks/cancel", map[string]any{"taskId": id}); err != nil {
			return err
		}
		return d.reaches(ctx, id, "cancelled")
	}},
	{"a question of the tool, answered in its task", tryQuestionInTask},
	{"a time to live", func(ctx context.Context, d *dialect) error {
		id, err := d.make(ctx, "try_work", map[string]any{"seconds": 1})
		if err != nil {
			return err
		}
		got, err := d.here.do(ctx, "tasks/get", map[string]any{"taskId": id})
		if err == nil && !strings.Contains(string(got), `"ttl`) {
			err = fmt.Errorf("no ttl in %s", got)
		}
		return err
	}},
	{"`tasks/list` (2025 alone)", func(ctx context.Context, d *dialect) error {
		if !d.legacy {
			return errors.New("the extension has none")
		}
		id, err := d.make(ctx, "try_work", map[string]any{"seconds": 1})
		if err != nil {
			return err
		}
		got, err := d.here.do(ctx, "tasks/list", map[string]any{})
		if err == nil && !strings.Contains(string(got), id) {
			err = fmt.Errorf("the task is not in %s", got)
		}
		return err
	}},
}

// make makes a call a task, and returns the task's id. With the extension the server decides when: the call is longer than its grace.
func (d *dialect) make(ctx context.Context, tool string, args map[string]any) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name, err := d.here.tool(ctx, tool)
	if err != nil {
		return "", err
	}
	params := map[string]any{"name": name, "arguments": args}
	if d.legacy {
		params["task"] = map[string]any{"ttl": 60000}
	} else if s, ok := args["seconds"].(int); ok {
		params["arguments"] = map[string]any{"seconds": s + 40}
	}
	result, err := d.here.do(ctx, "tools/call", params)
	if err != nil {
		return "", err
	}
	var r struct {
		TaskID string `json:"taskId"`
		Task   struct {
			TaskID string `json:"taskId"`
		} `json:"task"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return "", err
	}
	if id := r.TaskID + r.Task.TaskID; id != "" {
		return id, nil
	}
	return "", fmt.Errorf("the answer is no task: %s", result)
}

// reaches waits for a status.
func (d *dialect) reaches(ctx context.Context, id, want string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, err := d.here.do(ctx, "tasks/get", map[string]any{"taskId": id})
		if err != nil {
			return err
		}
		for _, status := range []string{want, "completed", "failed", "cancelled"} {
			switch {
			case !strings.Contains(string(got), `"status":"`+status+`"`):
			case status == want:
				return nil
			default:
				return fmt.Errorf("the task is %s, and not %s: %s", status, want, got)
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// result fetches the result of a task.
func (d *dialect) result(ctx context.Context, at *rawClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	method := "tasks/result"
	if !d.legacy {
		method = "tasks/get"
	}
	for {
		got, err := at.do(ctx, method, map[string]any{"taskId": id})
		if err != nil {
			return err
		}
		if strings.Contains(string(got), worked) {
			return nil
		}
		if d.legacy {
			return fmt.Errorf("the result is %s", got)
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// tryQuestionInTask waits until the task needs input, and answers: in the older dialect on the stream of tasks/result, in
// the extension by tasks/update.
func tryQuestionInTask(ctx context.Context, d *dialect) error {
	id, err := d.make(ctx, "try_elicit", map[string]any{"seconds": 0})
	if err != nil {
		return err
	}
	if err := d.reaches(ctx, id, "input_required"); err != nil {
		return err
	}
	if d.legacy {
		got, err := d.here.do(ctx, "tasks/result", map[string]any{"taskId": id})
		if err == nil && !strings.Contains(string(got), "blue") {
			err = fmt.Errorf("the result is %s", got)
		}
		return err
	}
	got, err := d.here.do(ctx, "tasks/get", map[string]any{"taskId": id})
	if err != nil {
		return err
	}
	var task struct {
		InputRequests map[string]json.RawMessage `json:"inputRequests"`
	}
	if err := json.Unmarshal(got, &task); err != nil {
		return err
	}
	answers := map[string]any{}
	for name := range task.InputRequests {
		answers[name] = map[string]any{"action": "accept", "content": map[string]any{"colour": "blue"}}
	}
	if _, err := d.here.do(ctx, "tasks/update", map[string]any{"taskId": id, "inputResponses": answers}); err != nil {
		return err
	}
	return d.reaches(ctx, id, "completed")
}

// rawClient speaks JSON-RPC over Streamable HTTP, since no SDK has a client of both dialects.
type rawClient struct {
	url, version, session string
	begun                 bool
	modern                *taskclient.Client
	ids                   atomic.Int64
}

// do sends a request, and returns its result.
func (c *rawClient) do(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	if c.version == modern {
		if c.modern == nil {
			c.modern = &taskclient.Client{URL: c.url, Tasks: true}
		}
		params["_meta"] = map[string]any{mcp.MetaClientCapabilities: map[string]any{
			"elicitation": map[string]any{}, "extensions": map[string]any{mcp.ExtensionTasks: map[string]any{}},
		}}
		return c.modern.Do(ctx, method, params)
	}
	if !c.begun {
		c.begun = true
		_, err := c.send(ctx, "initialize", map[string]any{
			"protocolVersion": c.version, "clientInfo": map[string]any{"name": "compare", "version": "1"},
			"capabilities": map[string]any{"elicitation": map[string]any{}, "tasks": map[string]any{
				"list": map[string]any{}, "cancel": map[string]any{}, "requests": map[string]any{"elicitation": map[string]any{"create": map[string]any{}}},
			}},
		})
		if err != nil {
			return nil, err
		}
		if err := c.post(ctx, map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"}); err != nil {
			return nil, err
		}
	}
	return c.send(ctx, method, params)
}

func (c *rawClient) tool(ctx context.Context, name string) (string, error) {
	result, err := c.do(ctx, "tools/list", map[string]any{})
	if err != nil {
		return "", err
	}
	var r struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(result, &r); err != nil {
		return "", err
	}
	for _, t := range r.Tools {
		if strings.HasSuffix(t.Name, name) {
			return t.Name, nil
		}
	}
	return "", fmt.Errorf("%w: %s", errNotListed, name)
}

// request is an HTTP request with a message.
func (c *rawClient) request(ctx context.Context, message any) (*http.Response, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
		req.Header.Set("MCP-Protocol-Version", c.version)
	}
	return http.DefaultClient.Do(req)
}

// post sends what has no answer.
func (c *rawClient) post(ctx context.Context, message any) error {
	resp, err := c.request(ctx, message)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// send sends a request, answers what the server asks meanwhile, and returns the result.
func (c *rawClient) send(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id := c.ids.Add(1)
	resp, err := c.request(ctx, map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if s := resp.Header.Get("Mcp-Session-Id"); s != "" {
		c.session = s
	}
	if resp.StatusCode >= 400 && !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, fmt.Errorf("HTTP %d: %s", resp.StatusCode, text)
	}
	for message, err := range messages(resp) {
		if err != nil {
			return nil, err
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Result json.RawMessage `json:"result"`
			Error  *taskclient.Error
		}
		switch err := json.Unmarshal(message, &m); {
		case err != nil:
			return nil, err
		case m.Method == "elicitation/create":
			answer := map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": map[string]any{"action": "accept", "content": map[string]any{"colour": "blue"}}}
			if err := c.post(ctx, answer); err != nil {
				return nil, err
			}
		case m.Method != "":
		case m.Error != nil:
			m.Error.Status = resp.StatusCode
			return nil, m.Error
		default:
			return m.Result, nil
		}
	}
	return nil, errors.New("the response ended without an answer")
}
