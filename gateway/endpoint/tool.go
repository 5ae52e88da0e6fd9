package endpoint

import (
	"context"
	"errors"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// CheckTool checks a call against the tool that it names, if the call reads the tool anyway: at a
// modern server, and at one that has tasks of its own. It refuses a tool that is hidden from
// clients (protocol.md 2.4), and, with taskFirst, one that the server does not list: its task could
// only fail. The server refuses any other unknown tool. fits makes further checks.
//
// The tools may have changed since they were listed, and the client may know the newer ones: before
// a call is refused, they are listed again.
func (e *Endpoint) CheckTool(ctx context.Context, s shim.Session, server upstream.Description, name string, taskFirst bool, fits func(upstream.Tool) error) error {
	own, _ := jsonrpc.Get(server.Capabilities, "tasks", "requests", "tools", "call")
	if server.Era != mcp.Modern && !(taskFirst && jsonrpc.IsObject(own)) {
		return nil
	}
	check := func() error {
		tool, listed, err := e.Upstream.Tool(ctx, s, name)
		switch {
		case err != nil:
			return nil // if the tools cannot be listed, the call goes as it is
		case tool.Invalid != nil && server.Era == mcp.Modern, !listed && taskFirst:
			return wire.InvalidParams("unknown tool: %s", name)
		}
		return fits(tool)
	}
	err := check()
	again := false
	if f := (*wire.Failure)(nil); errors.As(err, &f) {
		e.Relist.Do(func() { again = true })
	}
	if again {
		e.Upstream.Forget(s)
		err = check()
	}
	return err
}

// SaysOf is what the server says of a tool, for its policy: nothing, if no policy depends on it or the tools could not be
// listed in time.
func (e *Endpoint) SaysOf(ctx context.Context, s shim.Session, tool string) shim.Hints {
	if !e.Config.UsesHints() {
		return shim.Hints{}
	}
	listed, _, _ := e.Upstream.Tool(ctx, s, tool)
	return listed.Says
}

// TaskFirst reports whether a call of a tool with this policy becomes a task before it is sent. takes says that its
// client takes an unrequested task.
func (e *Endpoint) TaskFirst(policy config.Tool, takes bool, c Client) bool {
	switch policy.Tasks {
	case config.TasksAlways:
		return takes
	case config.TasksRequired:
		return takes || e.HandleAfter(c) > 0
	}
	return false
}
