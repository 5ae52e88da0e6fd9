package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// goPeers run the calls of a group, by what the table calls the peer.
var goPeers = map[string]func(context.Context, *askingGroup) error{
	"go2025-11-25": func(ctx context.Context, g *askingGroup) error { return g.askSDK(ctx, mcp.Version20251125) },
	"go2026-07-28": func(ctx context.Context, g *askingGroup) error { return g.askSDK(ctx, mcp.Version20260728) },
	"wire":         func(ctx context.Context, g *askingGroup) error { return g.askWire(ctx) },
}

// groupsAtOnce is how many groups of a client run beside each other. With all of them at
// once a busy machine takes longer to ask than a client has to answer.
const groupsAtOnce = 4

// runGroups runs the groups, some beside each other.
func runGroups(t *testing.T, groups []*askingGroup, run func(context.Context, *askingGroup) error) {
	t.Helper()
	var all sync.WaitGroup
	turns := make(chan struct{}, groupsAtOnce)
	for _, g := range groups {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			ctx, cancel := untilDeadline(t)
			defer cancel()
			if err := run(ctx, g); err != nil {
				g.Error = err.Error()
			}
		})
	}
	all.Wait()
}

// asks notes a question.
func (c *askedCall) asks(method, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Asked = append(c.Asked, asking{method, text})
}

// answers says what a handler of an SDK says: nil and nil is an answer that is wanted.
func (c *askedCall) answers() error {
	if c.meanwhile != nil {
		c.meanwhile()
	}
	switch c.Answer {
	case "error":
		return errors.New("nobody at home: " + c.Secret)
	case "gone":
		return errors.New("gone")
	case "silent": // until the call has ended: an answer could overtake the end of its time
		<-c.over
		return errors.New("too late")
	}
	return nil
}

// askSDK makes the calls with the Go SDK's client.
func (g *askingGroup) askSDK(ctx context.Context, version string) error {
	var now atomic.Pointer[askedCall] // the call on its way
	up, cut := context.WithCancel(ctx)
	defer cut()
	session, err := clientSDK(&now, g.Cells[0].Root).Connect(ctx, &sdk.StreamableClientTransport{
		Endpoint: g.URL, HTTPClient: &http.Client{Transport: newLine(up)}, MaxRetries: -1,
	}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return err
	}
	defer session.Close()
	for _, c := range g.Cells {
		c.over = make(chan struct{})
		if c.Answer == "gone" {
			c.meanwhile = cut
		}
		now.Store(c)
		c.Text, err = readSDK(ctx, session, c)
		close(c.over)
		if err != nil {
			c.Error = err.Error()
		}
	}
	return nil
}

// newLine is a client's way to a gateway. It is cut when its context ends: then nothing comes or goes any more, of
// requests on their way neither.
func newLine(up context.Context) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := up.Err(); err != nil {
			return nil, err
		}
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			context.AfterFunc(up, func() { _ = c.Close() })
		}
		return lineConn{c, up}, err
	}}
}

// lineConn is a connection of a line. Nothing is written to it from the cut on, as its end comes a moment later.
type lineConn struct {
	net.Conn
	up context.Context
}

func (c lineConn) Write(b []byte) (int, error) {
	if err := c.up.Err(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// clientSDK is a client of the Go SDK that is asked in the call of the moment.
func clientSDK(now *atomic.Pointer[askedCall], root string) *sdk.Client {
	client := sdk.NewClient(&sdk.Implementation{Name: "asked", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{
			RootsV2:     &sdk.RootCapabilities{},
			Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}},
		},
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			c := now.Load()
			c.asks(mcp.MethodElicit, cmp.Or(r.Params.URL, r.Params.Message))
			if err := c.answers(); err != nil {
				return nil, err
			}
			if c.Answer == "accept" && c.Kind == "form" {
				return &sdk.ElicitResult{Action: c.Answer, Content: map[string]any{"name": c.Secret}}, nil
			}
			return &sdk.ElicitResult{Action: c.Answer}, nil
		},
		CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			c := now.Load()
			text, _ := json.Marshal(r.Params.Messages)
			c.asks(mcp.MethodCreateMessage, string(text))
			if err := c.answers(); err != nil {
				return nil, err
			}
			return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: c.Secret}}, nil
		},
	})
	client.AddRoots(&sdk.Root{URI: root, Name: "root"})
	return client
}

var toldOf = regexp.MustCompile(`, arguments {"taskId":"([0-9a-f-]+)"`)

// readSDK makes a call, and reads by the gateway's tool what it is told of.
func readSDK(ctx context.Context, session *sdk.ClientSession, c *askedCall) (string, error) {
	call := &sdk.CallToolParams{Name: c.Tool, Arguments: c.Args}
	for {
		r, err := session.CallTool(ctx, call)
		if err != nil {
			return "", err
		}
		text, _ := json.Marshal(r.Content)
		var contents []struct{ Text string }
		if err := json.Unmarshal(text, &contents); err != nil {
			return "", err
		}
		var lines []string
		for _, content := range contents {
			lines = append(lines, content.Text)
		}
		told := strings.Join(lines, "\n")
		if m := toldOf.FindStringSubmatch(told); m != nil {
			c.Task = m[1]
			call = &sdk.CallToolParams{Name: "task_result", Arguments: map[string]any{"taskId": m[1]}}
			continue
		}
		if r.IsError {
			told = "error: " + told
		}
		return told, nil
	}
}

// askWire makes the calls as a client does that has no SDK: it takes what comes, a
// result, a question or a task.
func (g *askingGroup) askWire(ctx context.Context) error {
	do := requester(ctx, g.URL, map[string]any{
		"elicitation": map[string]any{"form": none, "url": none}, "sampling": none, "roots": none,
		"extensions": map[string]any{mcp.ExtensionTasks: none},
	})
	for _, c := range g.Cells {
		if err := c.converse(do); err != nil {
			c.Error = err.Error()
		}
	}
	return nil
}

// requester sends requests of a modern client that has no SDK, and has these capabilities.
func requester(ctx context.Context, url string, capabilities map[string]any) func(string, map[string]any) (json.RawMessage, error) {
	client := &taskclient.Client{URL: url}
	return func(method string, params map[string]any) (json.RawMessage, error) {
		params["_meta"] = map[string]any{mcp.MetaClientCapabilities: capabilities}
		return client.Do(ctx, method, params)
	}
}

// converse makes one call and answers what it is asked, in whichever way.
func (c *askedCall) converse(do func(string, map[string]any) (json.RawMessage, error)) error {
	answered := map[string]bool{}
	result, err := do(mcp.MethodToolsCall, map[string]any{"name": c.Tool, "arguments": c.Args})
	for err == nil {
		kind, _ := jsonrpc.GetString(result, "resultType")
		status, _ := jsonrpc.GetString(result, "status")
		questions, _ := jsonrpc.Get(result, "inputRequests")
		responses := map[string]any{}
		for key, q := range jsonrpc.Members(questions) {
			if !answered[key] {
				responses[key] = c.reply(q)
			}
			answered[key] = true
		}
		switch {
		case c.Answer == "gone" && len(answered) > 0:
			return nil
		case kind == mcp.ResultInputRequired:
			state, _ := jsonrpc.GetString(result, "requestState")
			result, err = do(mcp.MethodToolsCall, map[string]any{
				"name": c.Tool, "arguments": c.Args, "inputResponses": responses, "requestState": state,
			})
			clear(answered) // the keys of another round are another's
		case kind == mcp.ResultTask || status != "" && status != taskclient.Completed && status != taskclient.Failed:
			if c.Task == "" {
				c.Task, _ = jsonrpc.GetString(result, "taskId")
			}
			if len(responses) > 0 && c.Answer != "silent" {
				_, err = do(mcp.MethodTasksUpdate, map[string]any{"taskId": c.Task, "inputResponses": responses})
			}
			if err == nil {
				<-time.After(50 * time.Millisecond) // as the server's pollInterval wants it
				result, err = do(mcp.MethodTasksGet, map[string]any{"taskId": c.Task})
			}
		case status == taskclient.Failed:
			failure, _ := jsonrpc.Get(result, "error")
			return fmt.Errorf("the task failed: %s", failure)
		default:
			if inlined, ok := jsonrpc.Get(result, "result"); ok {
				result = inlined
			}
			return c.take(result)
		}
	}
	return err
}

// take reads a tool's result.
func (c *askedCall) take(result json.RawMessage) error {
	var r struct {
		IsError bool
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return err
	}
	for _, content := range r.Content {
		c.Text += content.Text
	}
	if r.IsError {
		c.Text = "error: " + c.Text
	}
	return nil
}

// reply notes a question and answers it.
func (c *askedCall) reply(question json.RawMessage) any {
	method, _ := jsonrpc.GetString(question, "method")
	c.asks(method, string(question))
	switch {
	case method == mcp.MethodCreateMessage:
		return map[string]any{"role": "assistant", "model": "m", "content": map[string]any{"type": "text", "text": c.Secret}}
	case method == mcp.MethodRootsList:
		return map[string]any{"roots": []any{map[string]any{"uri": c.Root, "name": "root"}}}
	case c.Answer == "accept" && c.Kind == "form":
		return map[string]any{"action": "accept", "content": map[string]any{"name": c.Secret}}
	}
	return map[string]any{"action": c.Answer}
}
