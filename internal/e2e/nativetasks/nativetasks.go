// Package nativetasks gives a server of the Go SDK tasks of its own, those of the extension
// io.modelcontextprotocol/tasks of 2026-07-28. It is a peer to test with: none of the SDKs that
// the tests use has a server with such tasks. What a tool does, asks and says is the SDK's; this
// package runs the call behind a task, and answers for it.
package nativetasks

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
)

// Tool says how a tool is run as a task. Tools that are not named are not.
type Tool struct {
	Required bool // it cannot be called without a task (T5)
	AskFirst bool // what it asks with its first answer it asks before there is a task (T21)
}

// Server runs some tools of a server of the SDK as tasks, for requests that declare the
// extension. It is safe for concurrent use.
type Server struct {
	server *sdk.Server
	tools  map[string]Tool
	stop   context.CancelFunc
	ctx    context.Context // of all tasks
	runs   sync.WaitGroup

	mu    sync.Mutex
	tasks map[string]*task
}

// Capabilities are what the server of the SDK has to declare.
func Capabilities() *sdk.ServerCapabilities {
	return &sdk.ServerCapabilities{
		Logging:    &sdk.LoggingCapabilities{},
		Extensions: map[string]any{mcp.ExtensionTasks: map[string]any{}},
	}
}

// New puts tasks before a server of the SDK.
func New(server *sdk.Server, tools map[string]Tool) *Server {
	ctx, stop := context.WithCancel(context.Background())
	return &Server{server: server, tools: tools, ctx: ctx, stop: stop, tasks: map[string]*task{}}
}

// Close ends all tasks.
func (s *Server) Close() {
	s.stop()
	s.runs.Wait()
}

// params are what matters of the parameters of a request.
type params struct {
	Name           string
	TaskID         string
	InputResponses map[string]json.RawMessage
	Meta           struct {
		Capabilities struct {
			Extensions map[string]json.RawMessage
		} `json:"io.modelcontextprotocol/clientCapabilities"`
	} `json:"_meta"`
}

// Serve answers a request that is about tasks; nil if it is for the SDK.
func (s *Server) Serve(req *jsonrpc.Request) *jsonrpc.Response {
	var p params
	if err := json.Unmarshal(req.Params, &p); err != nil {
		return nil
	}
	_, declared := p.Meta.Capabilities.Extensions[mcp.ExtensionTasks]
	switch req.Method {
	case mcp.MethodToolsCall:
		tool, ok := s.tools[p.Name]
		switch {
		case !ok, tool.AskFirst && p.InputResponses == nil, !declared && !tool.Required:
			return nil
		case !declared:
			return refused(req)
		}
		t, err := s.begin(req.Params)
		if err != nil {
			return &jsonrpc.Response{ID: req.ID, Error: err}
		}
		return answer(req, t.view(mcp.ResultTask, false))
	case mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel:
		if !declared {
			return refused(req)
		}
		s.mu.Lock()
		t := s.tasks[p.TaskID]
		s.mu.Unlock()
		if t == nil {
			return &jsonrpc.Response{ID: req.ID, Error: &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown task"}} // T30
		}
		switch req.Method {
		case mcp.MethodTasksGet:
			return answer(req, t.view(mcp.ResultComplete, true))
		case mcp.MethodTasksUpdate:
			t.take(p.InputResponses)
		default:
			t.end(func() { t.status = "cancelled" })
			t.stop()
		}
		return answer(req, map[string]any{"resultType": mcp.ResultComplete}) // T34, T41
	}
	return nil
}

// refused answers who does not declare the extension (T5, T6).
func refused(req *jsonrpc.Request) *jsonrpc.Response {
	return &jsonrpc.Response{ID: req.ID, Error: &jsonrpc.Error{
		Code: sdk.CodeMissingRequiredClientCapabilities, Message: "missing required client capability",
		Data: json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + mcp.ExtensionTasks + `":{}}}}`),
	}}
}

func answer(req *jsonrpc.Request, result map[string]any) *jsonrpc.Response {
	body, err := json.Marshal(result)
	if err != nil {
		return &jsonrpc.Response{ID: req.ID, Error: err}
	}
	return &jsonrpc.Response{ID: req.ID, Result: body}
}

// begin makes a task of a call, which goes to the server of the SDK in a session of its own.
func (s *Server) begin(call json.RawMessage) (*task, error) {
	var args map[string]json.RawMessage
	if err := json.Unmarshal(call, &args); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(s.ctx)
	here, there := sdk.NewInMemoryTransports()
	session, err := s.server.Connect(ctx, there, nil)
	if err != nil {
		stop()
		return nil, err
	}
	conn, err := here.Connect(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	t := newTask(uuid.NewString(), stop)
	s.mu.Lock()
	s.tasks[t.id] = t
	s.mu.Unlock()
	s.runs.Go(func() {
		defer stop()
		t.queued(ctx)
		t.run(ctx, conn, args)
		_ = session.Close()
	})
	return t, nil
}
