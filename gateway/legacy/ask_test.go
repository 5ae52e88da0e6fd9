package legacy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/internal/wiretest"
)

// form is what the server of these tests asks for.
var form = &sdk.ElicitParams{Message: "Which colour?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"colour":{"type":"string"}}}`)}

// askColour has a server ask for a colour, and say what it got.
func askColour(ctx context.Context, s *sdk.ServerSession) (string, error) {
	e, err := s.Elicit(ctx, form)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(e.Action, " ", e.Content["colour"]), nil
}

// askForAll has it ask for everything there is to ask for.
func askForAll(ctx context.Context, s *sdk.ServerSession) (string, error) {
	colour, err := askColour(ctx, s)
	if err != nil {
		return "", fmt.Errorf("elicit: %w", err)
	}
	m, err := s.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 5, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "hi"}}}})
	if err != nil {
		return "", fmt.Errorf("sample: %w", err)
	}
	r, err := s.ListRoots(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("roots: %w", err)
	}
	return fmt.Sprint(colour, " ", m.Model, " ", len(r.Roots)), nil
}

// withQuestions adds a tool, a prompt and a resource that ask.
func withQuestions(s *sdk.Server) {
	addTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) { return askForAll(ctx, r.Session) })
	addTool(s, "colour", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) { return askColour(ctx, r.Session) })
	s.AddPrompt(&sdk.Prompt{Name: "asking"}, func(ctx context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		text, err := askForAll(ctx, r.Session)
		return &sdk.GetPromptResult{Description: text}, err
	})
	s.AddResource(&sdk.Resource{Name: "asking", URI: "test://asking"}, func(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		text, err := askForAll(ctx, r.Session)
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://asking", Text: text}}}, err
	})
}

func red(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"colour": "red"}}, nil
}

func sample(context.Context, *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
	return &sdk.CreateMessageResult{Model: "m1", Role: "assistant", Content: &sdk.TextContent{Text: "hello"}}, nil
}

func textOf(r *sdk.CallToolResult) string {
	if len(r.Content) != 1 {
		return fmt.Sprint(r.Content)
	}
	text, _ := r.Content[0].(*sdk.TextContent)
	return text.Text
}

// TestReplicasAsk: an ordinary server asks an ordinary client in the middle of a call,
// a prompt and a resource, while each message of the client's comes to another replica
// than the one before.
func TestReplicasAsk(t *testing.T) {
	for _, version := range []string{mcp.Version20251125, mcp.Version20250618} {
		t.Run(version, func(t *testing.T) {
			stack := newLegacyReplicas(t, nil)
			withQuestions(stack.server)
			c := stack.connect(t, version, &sdk.ClientOptions{ElicitationHandler: red, CreateMessageHandler: sample})
			const want = "accept red m1 2"
			tool, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "ask"})
			if err != nil || textOf(tool) != want {
				t.Errorf("tool: %v, %v", tool, err)
			}
			prompt, err := c.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "asking"})
			if err != nil || prompt.Description != want {
				t.Errorf("prompt: %v, %v", prompt, err)
			}
			resource, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "test://asking"})
			if err != nil || resource.Contents[0].Text != want {
				t.Errorf("resource: %v, %v", resource, err)
			}
		})
	}
}

// TestReplicasAskRefused: the server hears of a client's error as of its own client's,
// and what a client did not declare it is never asked.
func TestReplicasAskRefused(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	withQuestions(stack.server)
	c := stack.connect(t, mcp.Version20251125, &sdk.ClientOptions{
		ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return nil, errors.New("nobody at home")
		},
	})
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "colour"})
	if err != nil && !strings.Contains(err.Error(), "nobody at home") || err == nil && (!r.IsError || !strings.Contains(textOf(r), "nobody at home")) {
		t.Errorf("the client's error: %v, %v", r, err)
	}
	silent := stack.connect(t, mcp.Version20251125, nil)
	r, err = silent.CallTool(t.Context(), &sdk.CallToolParams{Name: "colour"})
	if err == nil && !r.IsError {
		t.Errorf("a client that cannot be asked: %v", r)
	}
}

// question returns the next request on a stream, of a task or, without one, of a call.
func (s *sseClient) question(task string) (id string) {
	s.t.Helper()
	_, data := s.until("a question", func(data string) bool { return strings.Contains(data, `"method":"`+mcp.MethodElicit+`"`) })
	schematest.Validate(s.t, mcp.Version20251125, "ElicitRequest", []byte(data))
	if related, _ := jsonrpc.GetString([]byte(data), "params", "_meta", mcp.MetaRelatedTask, "taskId"); related != task {
		s.t.Errorf("related to task %q, want %q", related, task)
	}
	id, _ = jsonrpc.GetString([]byte(data), "id")
	return id
}

func answerBody(id, colour string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept","content":{"colour":%q}}}`, id, colour)
}

// end returns the message that answers a request on its stream.
func (s *sseClient) end(id string) string {
	s.t.Helper()
	_, data := s.until("the answer to "+id, func(data string) bool {
		got, _ := jsonrpc.GetString([]byte(data), "id")
		return got == id && !strings.Contains(data, `"method"`)
	})
	return data
}

// wantEnd wants that message to say this.
func (s *sseClient) wantEnd(id, text string) {
	s.t.Helper()
	if got := s.end(id); !strings.Contains(got, text) {
		s.t.Errorf("%s ended with %s, want %s", id, got, text)
	}
}

const resultBody = `{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q}}`

// TestReplicasTaskAsks: without a GET stream a task asks on tasks/result (L32), and
// the answer may come to the other replica (L33).
func TestReplicasTaskAsks(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		task := w.c.call(w.a, "ask")
		stream := w.result(w.b, task)
		stream.wantAsked("on tasks/result", nameQuestion(task, 0))
		if got := w.status(task); got != "input_required" {
			t.Errorf("while it asks: %s", got)
		}
		for _, colour := range []string{"blue", "green"} { // the second is too late
			w.c.wantPost(w.a, answerBody(nameQuestion(task, 0), colour), http.StatusAccepted)
		}
		<-stream.done
		stream.wantLast("blue")
	})
}

// TestReplicasTaskAsksOnGet: where the session has a GET stream, a task asks there, and
// not on tasks/result as well (protocol.md C 3, X5).
func TestReplicasTaskAsksOnGet(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		get := w.c.begin(w.b, "")
		task := w.c.call(w.a, "ask")
		result := w.result(w.a, task)
		wiretest.Wait(time.Minute)
		get.wantAsked("on the GET stream", nameQuestion(task, 0))
		w.answer(w.a, nameQuestion(task, 0))
		<-result.done
		result.wantAsked("on tasks/result")
		result.wantLast("accept")
		w.closeAll(get)
	})
}

// TestReplicasTaskAsksAgain: a question whose stream has died is asked on the next one
// under the same id (H7).
func TestReplicasTaskAsksAgain(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		task := w.c.call(w.a, "ask")
		w.result(w.a, task).quit()
		second := w.result(w.b, task)
		wiretest.Wait(time.Minute)
		second.wantAsked("on the next stream", nameQuestion(task, 0))
		w.answer(w.b, nameQuestion(task, 0))
		<-second.done
		second.wantLast("accept")
	})
}

// TestReplicasAskForeign: another session, and another caller, answer nothing.
func TestReplicasAskForeign(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	withQuestions(stack.server)
	a, other := stack.begin(t, 0, canBeAsked), stack.begin(t, 1, canBeAsked)
	call := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"colour"}}`, "")
	id := call.question("")
	for _, body := range []string{answerBody(id, "black"), answerBody("nonsense", "x"), answerBody(strings.Repeat("0", 36)+"/q", "x")} {
		if status, text := other.post(body); status != http.StatusAccepted || text != "" {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	a.answer(id, "red")
	call.wantEnd("c", "accept red")
}

// TestReplicasTaskProgress: the progress of a task goes on under the token of its call,
// on the session's GET stream at any replica, until the task has ended (L35). What the server
// reports right before its result is heard, too.
func TestReplicasTaskProgress(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) { c.Upstreams[0].Defaults.PollInterval = time.Second })
	moved := make(chan struct{})
	addTool(stack.server, "walk", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		for i, over := 1.0, false; ; i++ {
			select {
			case <-moved:
			case <-stack.session.proceed:
				i, over = 9, true
			}
			err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: i, Total: 9})
			if err != nil || over {
				return "", err
			}
		}
	})
	a := stack.begin(t, 0, "")
	get := openSSE(t, stack.on(t, 1, a), http.MethodGet, "", "")
	_, made := a.post(`{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":"walk","task":{},"_meta":{"progressToken":7}}}`)
	task := idOfTask(t, made)
	for _, i := range []int{1, 2, 9} {
		if i == 9 {
			stack.session.proceed <- struct{}{}
		} else {
			moved <- struct{}{}
		}
		_, data := get.until("progress", func(data string) bool { return strings.Contains(data, mcp.NotifyProgress) })
		schematest.Validate(t, mcp.Version20251125, "ProgressNotification", []byte(data))
		token, _ := jsonrpc.Get([]byte(data), "params", "progressToken")
		progress, _ := jsonrpc.Get([]byte(data), "params", "progress")
		related, _ := jsonrpc.GetString([]byte(data), "params", "_meta", mcp.MetaRelatedTask, "taskId") // L31
		if string(token) != "7" || string(progress) != fmt.Sprint(i) || related != task {
			t.Errorf("progress %d: %s", i, data)
		}
	}
}

// TestReplicasHandleAsks: a client that knows no tasks is asked what its task asks while
// it waits for the result (design.md 0.10).
func TestReplicasHandleAsks(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) {
		c.Upstreams[0].WithoutTasks, c.Upstreams[0].Defaults.Tasks = config.WithoutTasksHandle, config.TasksRequired
	})
	addTool(stack.server, "late", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		<-stack.session.proceed
		return askColour(ctx, r.Session)
	})
	c := stack.connect(t, mcp.Version20250618, &sdk.ClientOptions{ElicitationHandler: red})
	handle := wiretest.Must(c.CallTool(t.Context(), &sdk.CallToolParams{Name: "late"}))(t)
	id := idOfTask(t, textOf(handle))
	close(stack.session.proceed)
	start := time.Now()
	result, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "task_result", Arguments: map[string]any{"taskId": id}})
	if err != nil || textOf(result) != "accept red" {
		t.Errorf("result: %v %v", result, err)
	}
	// The session's GET stream, which is open, has no part in this task.
	if d := time.Since(start); d >= legacy.GetFirst {
		t.Errorf("after %v", d)
	}
}

// withAsides adds a tool that asks on the GET stream of the session.
func withAsides(s *sdk.Server) {
	addTool(s, "colour", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		// A server of the go-sdk asks on the GET stream with a context that does not name the request.
		beside, cancel := context.WithCancel(context.Background())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return askColour(beside, r.Session)
	})
}

// newAsidePair is one session at two replicas, in front of a server that asks on the GET
// stream of it. The first replica holds that stream: it has the client's.
func newAsidePair(t *testing.T) (stack *legacyReplicas, a, b *rawClient, get *sseClient) {
	t.Helper()
	stack = newLegacyReplicas(t, func(c *config.Config) { c.ResumeAfter = 100 * time.Millisecond })
	withAsides(stack.server)
	a, b = stack.beginBoth(t, canBeAsked)
	get = openSSE(t, a, http.MethodGet, "", "")
	stack.awaitHeard(get)
	return stack, a, b, get
}

// awaitHeard has the server tell of a change until that is heard on a stream, which is when the GET
// stream of the session is there. What a server of the go-sdk asks before is lost.
func (r *legacyReplicas) awaitHeard(s *sseClient) {
	s.t.Helper()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	r.addTool("more")
	for give := time.After(wiretest.Patience); ; {
		select {
		case line := <-s.lines:
			if strings.Contains(line, "tools/list_changed") {
				return
			}
		case <-again.C:
			r.addTool("more")
		case <-give:
			s.t.Fatal("timed out: the GET stream")
		}
	}
}

// TestReplicasAskAside: a question that names no call is asked on the GET stream of the client, wherever its calls run.
// Of two answers, at any replica, one counts.
func TestReplicasAskAside(t *testing.T) {
	_, a, b, get := newAsidePair(t)
	for i, at := range []*rawClient{a, b, a, b} {
		id := fmt.Sprint("c", i)
		call := openSSE(t, at, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"colour"}}`, id), "")
		from := a
		if i > 1 {
			from = b
		}
		question := get.question("")
		for _, colour := range []string{"blue", "green"} {
			from.answer(question, colour)
		}
		call.wantEnd(id, "accept blue")
	}
}

// TestReplicasTaskAsksAside: such a question stands in no task: it may be of another call.
func TestReplicasTaskAsksAside(t *testing.T) {
	_, a, b, get := newAsidePair(t)
	for _, at := range []*rawClient{a, b} {
		task := at.task("colour")
		id := get.question("")
		a.wantPost(fmt.Sprintf(`{"jsonrpc":"2.0","id":"g","method":"tasks/get","params":{"taskId":%q}}`, task), http.StatusOK, `"status":"working"`)
		for _, c := range []*rawClient{a, b} {
			c.answer(id, "red")
		}
		a.wantPost(fmt.Sprintf(resultBody, task), http.StatusOK, "accept red")
	}
}

// TestReplicasAskedNobody: of a client that has gone for good, the server hears at once,
// for each of its questions.
func TestReplicasAskedNobody(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	heard := make(chan string, 6)
	addTool(stack.server, "late", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		stack.session.started <- "late"
		<-stack.session.proceed
		for range 2 {
			var three sync.WaitGroup
			for range 3 {
				three.Go(func() { heard <- elicit(ctx, r.Session) })
			}
			three.Wait()
		}
		return "", nil
	})
	front := newCounted(t, stack.gates[0].Handler())
	leave := newRawClient(t, front.url).initialize(canBeAsked).beginPost(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"late"}}`)
	wiretest.Await(t, stack.session.started, "the tool")
	leave()
	waitUntil(t, "the connection's end", func() bool { return front.broken.Load() > 0 })
	stack.session.proceed <- struct{}{}
	for range 6 {
		wantNext(t, heard, "an answer", "cancel <nil>")
	}
}

// A GET stream that begins and ends while the store is away has the next one go on where it is: nothing comes twice.
func TestStandingAmidAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		first := w.c.begin(w.a, "")
		w.says("before")
		wiretest.Wait(4 * time.Second)
		w.sessions.gone.Store(true)
		heard := first.quit()
		amid := w.c.begin(w.a, "")
		wiretest.Wait(5 * time.Second)
		heard = append(heard, amid.quit()...)
		w.sessions.gone.Store(false)
		wiretest.Wait(5 * time.Second)
		last := w.c.begin(w.a, "")
		w.says("after")
		wiretest.Wait(4 * time.Second)
		data := loggedIn(append(heard, last.quit()...))
		if got := strings.Join(data, ", "); got != "before, after" {
			t.Errorf("heard %s", got)
		}
	})
}
