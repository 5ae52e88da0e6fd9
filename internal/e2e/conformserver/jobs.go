package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/e2e/nativetasks"
)

// taskTools are the tools that are tasks of the server itself, if it has tasks.
var taskTools = map[string]nativetasks.Tool{
	"slow_compute":        {},
	"failing_job":         {Required: true},
	"protocol_error_job":  {},
	"confirm_delete":      {},
	"multi_input":         {},
	"test_tool_with_task": {AskFirst: true},
}

// jobLength is how long the failing jobs take.
const jobLength = time.Second

type greetInput struct {
	Name string `json:"name" jsonschema:"whom to greet"`
}

type computeInput struct {
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long to compute"`
	Label   string  `json:"label,omitempty" jsonschema:"what to call it"`
}

// addJobs adds the tools of the task scenarios.
func addJobs(server *mcp.Server) {
	mcp.AddTool(server, &mcp.Tool{Name: "greet", Description: "Greets at once."},
		func(_ context.Context, _ *mcp.CallToolRequest, in greetInput) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{text("Hello, " + in.Name + "!")}}, nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "slow_compute", Description: "Takes as long as it is told to."},
		func(ctx context.Context, _ *mcp.CallToolRequest, in computeInput) (*mcp.CallToolResult, any, error) {
			if err := wait(ctx, time.Duration(in.Seconds*float64(time.Second))); err != nil {
				return nil, nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{text(fmt.Sprintf("%s: computed for %v s", in.Label, in.Seconds))}}, nil, nil
		})
	add(server, "failing_job", "Fails after a second, as a tool does.",
		func(ctx context.Context, _ *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
			if err := wait(ctx, jobLength); err != nil {
				return nil, nil, err
			}
			return nil, nil, errors.New("the job has failed")
		})
	add(server, "protocol_error_job", "Fails after a second, as a server does.",
		func(ctx context.Context, _ *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
			if err := wait(ctx, jobLength); err != nil {
				return nil, nil, err
			}
			return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the server has failed"}
		})
}
