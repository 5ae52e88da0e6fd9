package legacy_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// stackClient is a client of the go-sdk, with what it hears.
type stackClient struct {
	*sdk.ClientSession
	progress chan string
	logs     chan string
	changed  chan string
	updated  chan string
}

// connect connects an ordinary client, which has two roots.
func (s *legacyStack) connect(t *testing.T, version string, o *sdk.ClientOptions, change ...func(*sdk.StreamableClientTransport)) *sdk.ClientSession {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := sdk.NewClient(&sdk.Implementation{Name: "client", Version: "1"}, o)
	client.AddRoots(&sdk.Root{URI: "file:///a"}, &sdk.Root{URI: "file:///b"})
	to := &sdk.StreamableClientTransport{Endpoint: s.url, HTTPClient: &http.Client{Transport: transport}}
	for _, f := range change {
		f(to)
	}
	session := wiretest.Must(client.Connect(t.Context(), to, &sdk.ClientSessionOptions{ProtocolVersion: version}))(t)
	t.Cleanup(func() { _ = session.Close() }) // a second time where the test has closed it
	return session
}

// connectListener connects a client that keeps what it hears.
func (s *legacyStack) connectListener(t *testing.T, version string) *stackClient {
	t.Helper()
	c := &stackClient{
		progress: make(chan string, 16), logs: make(chan string, 16),
		changed: make(chan string, 16), updated: make(chan string, 16),
	}
	c.ClientSession = s.connect(t, version, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			c.progress <- fmt.Sprint(r.Params.ProgressToken, " ", r.Params.Progress, " ", r.Params.Message)
		},
		LoggingMessageHandler: func(_ context.Context, r *sdk.LoggingMessageRequest) { c.logs <- string(r.Params.Level) },
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			c.changed <- "tools"
		},
		ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { c.updated <- r.Params.URI },
	})
	return c
}

// TestLegacySDK has an ordinary client do all that it can in front of a server of each era. Its end is that of the
// session here and at the server.
func TestLegacySDK(t *testing.T) {
	for _, modern := range []bool{false, true} {
		for _, version := range []string{mcp.Version20251125, mcp.Version20250618, mcp.Version20250326} {
			t.Run(fmt.Sprintf("%s/modern=%t", version, modern), func(t *testing.T) {
				stack := newLegacyStack(t, modern, nil)
				c := stack.connectListener(t, version)
				checkPeer(t, stack, c, version)
				if !modern && stack.sessions() == 0 {
					t.Error("no session was opened upstream")
				}
				wiretest.Check(t, c.Close())
				waitUntil(t, "the end of the upstream session", func() bool { return stack.sessions() == 0 })
			})
		}
	}
}

// checkPeer has a client do what it can with the server of newPeer.
func checkPeer(t *testing.T, s *legacyStack, c *stackClient, version string) {
	t.Helper()
	checkInitialized(t, c, version)
	checkLists(t, c)
	checkCalls(t, c)
	checkSubscription(t, s, c)
	checkListChanged(t, s, c)
}

func checkInitialized(t *testing.T, c *stackClient, version string) {
	t.Helper()
	r := c.InitializeResult()
	if r.ProtocolVersion != version || r.ServerInfo.Name != "peer" || r.ServerInfo.Version != "1.2" || r.Instructions != "Ask nicely." {
		t.Errorf("initialized as %+v", r)
	}
	if r.Capabilities.Tools == nil || r.Capabilities.Resources == nil || !r.Capabilities.Resources.Subscribe || r.Capabilities.Logging == nil {
		t.Errorf("capabilities %+v", r.Capabilities)
	}
	wiretest.Check(t, c.Ping(t.Context(), nil))
}

func checkLists(t *testing.T, c *stackClient) {
	t.Helper()
	ctx, greet := t.Context(), &sdk.CompleteReference{Type: "ref/prompt", Name: "greet"}
	got := fmt.Sprint([]any{
		len(wiretest.Must(c.ListTools(ctx, nil))(t).Tools),
		len(wiretest.Must(c.ListPrompts(ctx, nil))(t).Prompts),
		len(wiretest.Must(c.GetPrompt(ctx, &sdk.GetPromptParams{Name: "greet"}))(t).Messages),
		len(wiretest.Must(c.ListResources(ctx, nil))(t).Resources),
		len(wiretest.Must(c.ListResourceTemplates(ctx, nil))(t).ResourceTemplates),
		wiretest.Must(c.ReadResource(ctx, &sdk.ReadResourceParams{URI: "test://a"}))(t).Contents[0].Text,
		wiretest.Must(c.Complete(ctx, &sdk.CompleteParams{Ref: greet, Argument: sdk.CompleteParamsArgument{Name: "a", Value: "r"}}))(t).Completion.Values,
	})
	if got != "[3 1 1 1 1 body [red]]" {
		t.Errorf("listed %s", got)
	}
}

func checkCalls(t *testing.T, c *stackClient) {
	t.Helper()
	ctx := t.Context()
	r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "echo", Arguments: map[string]any{"a": 1}})
	if err != nil || r.Content[0].(*sdk.TextContent).Text != `echo {"a":1}` {
		t.Errorf("call: %+v, %v", r, err)
	}
	if _, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "nosuch"}); err == nil {
		t.Error("a tool that does not exist was called")
	}
	wiretest.Check(t, c.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: "error"}))
	p := &sdk.CallToolParams{Name: "steps"}
	p.SetProgressToken("mine")
	if _, err := c.CallTool(ctx, p); err != nil {
		t.Error(err)
	}
	for i := range 3 {
		want := fmt.Sprintf("mine %d step %d", i+1, i+1)
		wantNext(t, c.progress, "progress", want)
	}
	wantNext(t, c.logs, "log message", "error")
	if len(c.logs) != 0 {
		t.Error("a message below the level was sent")
	}
}

func checkSubscription(t *testing.T, s *legacyStack, c *stackClient) {
	t.Helper()
	wiretest.Check(t, c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "test://a"}))
	wiretest.Await(t, s.session.subs, "the subscription upstream")
	wiretest.Check(t, s.server.ResourceUpdated(t.Context(), &sdk.ResourceUpdatedNotificationParams{URI: "test://a"}))
	wantNext(t, c.updated, "an update", "test://a")
	wiretest.Check(t, c.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: "test://a"}))
}

func checkListChanged(t *testing.T, s *legacyStack, c *stackClient) {
	t.Helper()
	schema := map[string]any{"type": "object"}
	s.server.AddTool(&sdk.Tool{Name: "new", InputSchema: schema}, nil)
	wiretest.Await(t, c.changed, "list_changed")
	if r, err := c.ListTools(t.Context(), nil); err != nil || len(r.Tools) != 4 {
		t.Errorf("tools: %+v, %v", r, err)
	}
}

func (s *legacyStack) sessions() int {
	n := 0
	for range s.server.Sessions() {
		n++
	}
	return n
}
