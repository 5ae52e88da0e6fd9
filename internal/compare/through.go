package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/compare/peers"
)

// passage is what came of one feature: "yes", "partly: what", or "no: why".
type passage struct {
	Feature string
	Legacy  string // with a client of 2025-11-25
	Modern  string // with one of 2026-07-28
}

// heard is what a client heard outside of answers. It is safe for concurrent use.
type heard struct {
	mu       sync.Mutex
	progress int
	logs     int
	updated  int
	tools    int
	changed  chan struct{} // gets one for each of them, if there is room
}

func (h *heard) add(n *int) {
	h.mu.Lock()
	*n++
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// await waits until so many were heard, or as long as such a message may take.
func (h *heard) await(n *int, want int) int {
	end := time.NewTimer(15 * time.Second)
	defer end.Stop()
	for {
		h.mu.Lock()
		got := *n
		h.mu.Unlock()
		if got >= want {
			return got
		}
		select {
		case <-h.changed:
		case <-end.C:
			return got
		}
	}
}

// options are those of a client that has all that a server can ask for.
func (h *heard) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"colour": "blue"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "blue"}}, nil
		},
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { h.add(&h.progress) },
		LoggingMessageHandler:       func(context.Context, *mcp.LoggingMessageRequest) { h.add(&h.logs) },
		ResourceUpdatedHandler:      func(context.Context, *mcp.ResourceUpdatedNotificationRequest) { h.add(&h.updated) },
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { h.add(&h.tools) },
	}
}

// crossing is one client that tries one feature after the other.
type crossing struct {
	*lab
	*client
	*heard
	id string // of its calls
}

// features are tried in this order. A func returns what is missing, in words, or an error.
var features = []struct {
	name string
	try  func(context.Context, *crossing) (string, error)
}{
	{"progress, five messages 0.2 s apart", tryProgress},
	{"log messages", tryLog},
	{"elicitation", func(ctx context.Context, c *crossing) (string, error) { return c.answers(ctx, "try_elicit", "blue") }},
	{"sampling", func(ctx context.Context, c *crossing) (string, error) { return c.answers(ctx, "try_sample", "blue") }},
	{"roots", func(ctx context.Context, c *crossing) (string, error) {
		return c.answers(ctx, "try_roots", "file:///a/root")
	}},
	{"cancellation reaches the tool", tryCancellation},
	{"resources/updated", tryUpdated},
	{"tools/list_changed", tryChanged},
	{"an image", tryImage},
	{"`_meta` of the call reaches the tool, and that of the result the client", tryMeta},
	{"integers of 64 bits, in arguments and in structured results", tryNumbers},
	{"resources and prompts", tryOthers},
	{"a result of 20 MiB within two minutes", tryLarge}, // the last one, since some do nothing else meanwhile
}

// runThrough tries all features through all peers.
func runThrough(ctx context.Context, o *options) error {
	return each(o, "through", o.together, twice, func(p peers.Peer) ([]passage, error) {
		found := make([]passage, len(features))
		old, err := crossAll(ctx, o, p, legacy)
		if err != nil {
			return nil, err
		}
		recent, failed := crossAll(ctx, o, p, modern)
		for i, f := range features {
			found[i] = passage{Feature: f.name, Legacy: old[i]}
			if failed != nil {
				found[i].Modern = "no: " + oneLine(failed.Error())
			} else {
				found[i].Modern = recent[i]
			}
		}
		log.Printf("%s: %+v", p.Name, found)
		return found, nil
	})
}

// crossAll tries all features with a client of one version, each with a client of its own.
func crossAll(ctx context.Context, o *options, p peers.Peer, version string) ([]string, error) {
	l, err := newLab(o, p)
	if err != nil {
		return nil, err
	}
	defer l.stop()
	if err := l.startReady(ctx); err != nil {
		return nil, err
	}
	var found []string
	for i, f := range features {
		missing, err := l.cross(ctx, version, fmt.Sprintf("%s-%d", version, i), f.try)
		switch {
		case errors.Is(err, errOtherVersion) && i == 0:
			return nil, err
		case err != nil:
			found = append(found, "no: "+oneLine(err.Error()))
		case missing != "":
			found = append(found, "partly: "+missing)
		default:
			found = append(found, "yes")
		}
	}
	return found, nil
}

var errOtherVersion = errors.New("it answers in another version")

func (l *lab) cross(ctx context.Context, version, id string, try func(context.Context, *crossing) (string, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c := &crossing{lab: l, heard: &heard{changed: make(chan struct{}, 100)}, id: id}
	var err error
	if c.client, err = l.connectWithRoots(ctx, version, c.heard.options()); err != nil {
		return "", fmt.Errorf("%w: %w", errOtherVersion, err)
	}
	defer c.Close()
	if got := c.InitializeResult().ProtocolVersion; version == modern && got != modern {
		return "", fmt.Errorf("%w: %s", errOtherVersion, got)
	}
	return try(ctx, c)
}

func tryProgress(ctx context.Context, c *crossing) (string, error) {
	name, err := c.tool(ctx, "try_progress")
	if err != nil {
		return "", err
	}
	params := &mcp.CallToolParams{Name: name, Arguments: map[string]any{"id": c.id, "seconds": 0.2}}
	params.SetProgressToken("p-" + c.id)
	if _, err := c.CallTool(ctx, params); err != nil {
		return "", err
	}
	switch n := c.await(&c.progress, 5); n {
	case 5:
		return "", nil
	case 0:
		return "", errors.New("none of five messages came")
	default:
		return fmt.Sprintf("%d of five messages came", n), nil
	}
}

func tryLog(ctx context.Context, c *crossing) (string, error) {
	name, err := c.tool(ctx, "try_log")
	if err != nil {
		return "", err
	}
	params := &mcp.CallToolParams{Name: name, Arguments: map[string]any{"id": c.id}}
	if c.InitializeResult().ProtocolVersion == modern {
		params.Meta = mcp.Meta{mcp.MetaKeyLogLevel: "debug"}
	} else if err := c.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		return "", err
	}
	if _, err := c.CallTool(ctx, params); err != nil {
		return "", err
	}
	if c.await(&c.logs, 1) == 0 {
		return "", errors.New("no message came")
	}
	return "", nil
}

// answers calls a tool that asks the client something, and wants the answer in its result.
func (c *crossing) answers(ctx context.Context, tool, want string) (string, error) {
	text, err := c.call(ctx, tool, map[string]any{"id": c.id})
	if err == nil && !strings.Contains(text, want) {
		err = fmt.Errorf("the tool got %s", text)
	}
	return "", err
}

func tryCancellation(ctx context.Context, c *crossing) (string, error) {
	name, err := c.tool(ctx, "try_work")
	if err != nil {
		return "", err
	}
	calling, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.CallTool(calling, &mcp.CallToolParams{Name: name, Arguments: map[string]any{"id": c.id, "seconds": 60}})
	}()
	if !c.happens(ctx, "begin", 30*time.Second) {
		cancel()
		<-done
		return "", errors.New("the call did not reach the server")
	}
	cancel()
	<-done
	if !c.happens(ctx, "cancelled", 15*time.Second) {
		return "", errors.New("the tool went on")
	}
	return "", nil
}

// happens waits for an event of this crossing's call at the server.
func (c *crossing) happens(ctx context.Context, what string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		if all, err := c.read(); err == nil && count(all, what, c.id) > 0 {
			return true
		}
		pause(ctx, 50*time.Millisecond)
	}
	return false
}

func tryUpdated(ctx context.Context, c *crossing) (string, error) {
	uri := "note://1"
	for r, err := range c.Resources(ctx, nil) {
		if err != nil {
			return "", err
		}
		uri = r.URI
	}
	if err := c.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
		return "", err
	}
	if _, err := c.call(ctx, "try_update", map[string]any{"id": c.id}); err != nil {
		return "", err
	}
	if c.await(&c.updated, 1) == 0 {
		return "", errors.New("no message came")
	}
	return "", nil
}

func tryChanged(ctx context.Context, c *crossing) (string, error) {
	if _, err := c.call(ctx, "try_change", map[string]any{"id": c.id}); err != nil {
		return "", err
	}
	told := c.await(&c.tools, 1) > 0
	_, listed := c.tool(ctx, "try_added_"+c.id)
	for end := time.Now().Add(15 * time.Second); listed != nil && told && time.Now().Before(end); pause(ctx, 200*time.Millisecond) {
		_, listed = c.tool(ctx, "try_added_"+c.id) // some read it after they have told
	}
	switch {
	case told && listed == nil:
		return "", nil
	case listed == nil:
		return "no message came; the list has the new tool", nil
	case told:
		return "a message came; the list lacks the new tool", nil
	default:
		return "", errors.New("no message came, and the list lacks the new tool")
	}
}

func tryOthers(ctx context.Context, c *crossing) (string, error) {
	var lacks []string
	uri := ""
	for r, err := range c.Resources(ctx, nil) {
		if err != nil {
			break
		}
		uri = r.URI
	}
	if r, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri}); err != nil || len(r.Contents) != 1 || r.Contents[0].Text != "a note" {
		lacks = append(lacks, "resources")
	}
	name := ""
	for p, err := range c.Prompts(ctx, nil) {
		if err != nil {
			break
		}
		name = p.Name
	}
	if r, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: name}); err != nil || len(r.Messages) != 1 {
		lacks = append(lacks, "prompts")
	}
	switch len(lacks) {
	case 0:
		return "", nil
	case 1:
		return "no " + lacks[0], nil
	default:
		return "", errors.New("neither")
	}
}

func tryImage(ctx context.Context, c *crossing) (string, error) {
	name, err := c.tool(ctx, "try_image")
	if err != nil {
		return "", err
	}
	r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name})
	if err != nil {
		return "", err
	}
	if len(r.Content) == 1 {
		if i, ok := r.Content[0].(*mcp.ImageContent); ok && string(i.Data) == "\x01\x02\x03\xfa\xfb\xfc" && i.MIMEType == "image/png" {
			return "", nil
		}
	}
	text, err := json.Marshal(r)
	return "", errors.Join(fmt.Errorf("it came as %s", text), err)
}
