package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// questions adds the tools that ask the client something.
func (t *trials) questions(s *mcp.Server) {
	t.tool(s, "try_elicit", "Works for so many seconds, and asks the user for a colour.", func(ctx context.Context, r *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
		if _, err := work(ctx, r, in); err != nil {
			return nil, err
		}
		answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Which colour?", RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"colour": map[string]any{"type": "string"}},
		}})
		if err != nil {
			return nil, err
		}
		return said(fmt.Sprintf("the answer is %s %v", answer.Action, answer.Content["colour"])), nil
	})
	t.tool(s, "try_sample", "Asks the client's model.", func(ctx context.Context, r *mcp.CallToolRequest, _ input) (*mcp.CallToolResult, error) {
		answer, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "Say blue."}},
		}})
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(answer.Content)
		return said(string(text)), err
	})
	t.tool(s, "try_roots", "Asks for the client's roots.", func(ctx context.Context, r *mcp.CallToolRequest, _ input) (*mcp.CallToolResult, error) {
		roots, err := r.Session.ListRoots(ctx, nil)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(roots)
		return said(string(text)), err
	})
}

// note1 is the resource whose changes clients are told of.
const note1 = "note://1"

// changes adds a resource, a prompt, and the tools that change something.
func (t *trials) changes(s *mcp.Server) {
	s.AddResource(&mcp.Resource{URI: note1, Name: "a note", MIMEType: "text/plain"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: note1, MIMEType: "text/plain", Text: "a note"}}}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "a_prompt"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "say blue"}}}}, nil
	})
	t.tool(s, "try_update", "Changes the note.", func(ctx context.Context, _ *mcp.CallToolRequest, _ input) (*mcp.CallToolResult, error) {
		return said(worked), s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: note1})
	})
	t.tool(s, "try_change", "Adds a tool.", func(_ context.Context, _ *mcp.CallToolRequest, in input) (*mcp.CallToolResult, error) {
		s.AddTool(&mcp.Tool{Name: "try_added_" + in.ID, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return said(worked), nil
		})
		return said(worked), nil
	})
}
