package e2e

import (
	"errors"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
	"taskgate/shim/shimtest/fake"
)

// askingForm is a question by form.
const askingForm = `{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`

// stacked is a gateway in front of another one, which makes a task of each call of its server.
type stacked struct {
	t            *testing.T
	server       *fake.Server
	inner, outer *gateway
	goOn         chan struct{} // lets the tool "steps" end
	gone         chan struct{} // the call of the tool "hang" was given up
}

func newStacked(t *testing.T) *stacked {
	t.Helper()
	w := &stacked{t: t, server: fake.New(t, fake.Stateful), goOn: make(chan struct{}), gone: make(chan struct{}, 1)}
	w.server.Tool("ask", func(x *fake.Exchange) {
		x.Run()
		answer := x.Ask(`"q-`+x.Arg("key")+`"`, mcp.MethodElicit, askingForm)
		name, _ := jsonrpc.GetString(answer, "result", "content", "name")
		x.Event(x.Result(`{"content":[{"type":"text","text":"hello ` + name + `"}]}`))
	})
	w.server.Tool("steps", func(x *fake.Exchange) {
		x.Run()
		x.Event(x.Progress(1, "reading"))
		<-w.goOn
		x.Event(x.Result(`{"content":[{"type":"text","text":"read"}]}`))
	})
	w.server.Tool("hang", fake.Hanging(w.gone))
	w.inner = startGateway(t, configured(t, `
upstreams:
  - {name: deep, path: /mcp, url: "`+w.server.URL+`", defaults: {tasks: always, poll_interval: 100ms}}
`)...)
	w.outer = startGateway(t, configured(t, `
upstreams:
  - {name: inner, path: /mcp, era: modern, url: "`+w.inner.url+`", defaults: {tasks: auto, grace: 300ms, poll_interval: 100ms}}
`)...)
	return w
}

// A gateway in front of another one uses the tasks that the other makes: what the tool asks and
// says, and that it is cancelled, passes through both, for every client.
func TestTasksBehindAGateway(t *testing.T) {
	t.Parallel()
	w := newStacked(t)
	for _, tasks := range []bool{true, false} {
		key := map[bool]string{true: "with", false: "without"}[tasks]
		capabilities := map[string]any{"elicitation": map[string]any{}}
		if tasks {
			capabilities["extensions"] = map[string]any{mcp.ExtensionTasks: map[string]any{}}
		}
		c := &askedCall{Tool: "ask", Args: keyed(key), Answer: "accept", Kind: "form", Secret: "Ada"}
		err := c.converse(requester(t.Context(), w.outer.url, capabilities))
		if err != nil || c.Text != "hello Ada" || len(c.Asked) != 1 || tasks != (c.Task != "") {
			t.Errorf("%s: asked %v, told %q, task %q: %v", key, c.Asked, c.Text, c.Task, err)
		}
	}
	s := begin(t, w.outer)
	if _, answer := s.stay(w.outer, w.outer, mcp.MethodToolsCall, `{"name":"ask","arguments":{"key":"legacy"}}`, `{"name":"Ada"}`); texts(t, answer.Result) != "hello Ada" {
		t.Errorf("a client of 2025-11-25 was told %s", answer.Result)
	}
	wantRuns(t, w.server, "with", "without", "legacy")

	client := w.outer.client(true)
	task := callTask(t, client, "steps", keyed("steps"))
	eventually(t, "the status message of both", func() error {
		now, err := client.Get(t.Context(), task.ID)
		if err == nil && now.StatusMessage != "reading" {
			err = errNotYet
		}
		return err
	})
	var unknown *taskclient.Error
	if _, err := w.inner.client(true).Get(t.Context(), task.ID); !errors.As(err, &unknown) || unknown.Code != mcp.CodeInvalidParams {
		t.Errorf("the task of the one gateway at the other: %v", err)
	}
	close(w.goOn)
	if got := texts(t, waitFor(t, client, task.ID, "completed").Result); got != "read" {
		t.Errorf("the result is %q", got)
	}

	cancelled := callTask(t, client, "hang", keyed("hang"))
	until(t, "the call", func() bool { return w.server.Runs("hang") != 0 })
	if err := client.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	<-w.gone
	wantRuns(t, w.server, "steps", "hang")
}
