// Package sdkpeer is a server of the Go SDK with the tools that the suite of upstream clients calls.
package sdkpeer

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Options of a server.
type Options struct {
	// Modern asks by the result of a call, as servers of 2026 do.
	Modern bool
	// Began is told the key of each call, and Cancelled that of one which was cancelled.
	Began, Cancelled func(key string)
	// Stop ends the calls that wait to be cancelled; nil never does.
	Stop <-chan struct{}
}

// args are the arguments of all tools.
type args struct {
	Key  string `json:"key"`
	Text string `json:"text"`
	N    int    `json:"n"`
}

// New makes a server with the tools of shimtest.Peer, and with "change", after which its tools are others.
func New(o Options) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "peer", Version: "1"}, nil)
	add := func(name string, run func(context.Context, *mcp.CallToolRequest, args) *mcp.CallToolResult) {
		srv.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var a args
				if err := json.Unmarshal(r.Params.Arguments, &a); err != nil {
					return nil, err
				}
				o.Began(a.Key)
				return run(ctx, r, a), nil
			})
	}
	add("echo", func(_ context.Context, _ *mcp.CallToolRequest, a args) *mcp.CallToolResult { return reply(a.Text) })
	add("fail", func(context.Context, *mcp.CallToolRequest, args) *mcp.CallToolResult { return failed("no") })
	add("steps", steps)
	add("log", log)
	add("wait", func(ctx context.Context, _ *mcp.CallToolRequest, a args) *mcp.CallToolResult {
		select {
		case <-ctx.Done():
			o.Cancelled(a.Key)
		case <-o.Stop:
		}
		return reply("over")
	})
	add("ask", func(ctx context.Context, r *mcp.CallToolRequest, _ args) *mcp.CallToolResult {
		return ask(ctx, r, o.Modern)
	})
	add("change", func(context.Context, *mcp.CallToolRequest, args) *mcp.CallToolResult {
		Change(srv)
		return reply("done")
	})
	return srv
}

// Change makes the server say that its tools have changed.
func Change(srv *mcp.Server) {
	srv.AddTool(&mcp.Tool{Name: "new", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
}

func reply(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func failed(s string) *mcp.CallToolResult {
	r := reply(s)
	r.IsError = true
	return r
}

func steps(ctx context.Context, r *mcp.CallToolRequest, a args) *mcp.CallToolResult {
	for i := range a.N {
		p := &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: fmt.Sprint(i + 1), Progress: float64(i + 1), Total: float64(a.N)}
		if err := r.Session.NotifyProgress(ctx, p); err != nil {
			return failed(err.Error())
		}
	}
	return reply("done")
}

func log(ctx context.Context, r *mcp.CallToolRequest, _ args) *mcp.CallToolResult {
	for _, level := range []mcp.LoggingLevel{"debug", "error"} {
		if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Data: "x"}); err != nil {
			return failed(err.Error())
		}
	}
	return reply("done")
}

func ask(ctx context.Context, r *mcp.CallToolRequest, modern bool) *mcp.CallToolResult {
	q := &mcp.ElicitParams{Message: "who?", Mode: "form", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}
	if modern {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": q}}
	}
	res, err := r.Session.Elicit(ctx, q)
	if err != nil {
		return failed(err.Error())
	}
	return reply(fmt.Sprint(res.Content["name"]))
}
