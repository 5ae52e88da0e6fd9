// Package modes answers calls of tasks in the response modes of SEP-1905 (protocol.md 6.1), if an
// upstream has response_modes: on and the client of a session declares them. It stands in front of
// two methods of gateway/legacy. It takes a tools/call with params.task, or a tasks/result, and
// gives one answer, or several responses to one request. It reads the stream of a task from the
// task's partial results, and has no state of its own.
package modes

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/content"
)

// The response modes (A1), in the order in which one is picked (A3).
const (
	immediate = "immediate"
	streaming = "streaming"
	task      = "task"
)

// Request is a request of a session that can make tasks.
type Request struct {
	Endpoint     *endpoint.Endpoint
	Method       string // tools/call or tasks/result
	Params       json.RawMessage
	Principal    shim.Principal
	Capabilities json.RawMessage // of the client
	Client       context.Context // ends when the client's connection does
	Session      shim.Session    // in which the server is called
	// Serve answers a tools/call or a tasks/result in the plain way.
	Serve func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// Send sends a response ahead of the last one; nil if the client takes one answer only.
	Send func(result json.RawMessage) error
}

// Declare adds the modes to the capability of tasks (A1).
func Declare(tasks json.RawMessage) json.RawMessage {
	return jsonrpc.With(tasks, json.RawMessage(`{"modes":["task","immediate","streaming"]}`), "responses")
}

// Answer answers a tools/call or a tasks/result. If the client has declared no modes, or asks for
// none, the answer is the usual one.
func (r Request) Answer(ctx context.Context) (json.RawMessage, error) {
	list, _ := jsonrpc.Get(r.Capabilities, "tasks", "responses", "modes")
	declared, _ := jsonrpc.Strings(list)
	switch {
	case declared == nil:
		return r.Serve(ctx, r.Method, r.Params)
	case r.Method == mcp.MethodToolsCall:
		return r.answerCall(ctx, declared)
	case slices.Contains(declared, streaming):
		return r.answerResult(ctx)
	}
	return r.Serve(ctx, r.Method, r.Params)
}

// answerCall answers a tools/call by the first of the modes that both sides list (A3). The call is a
// task in any case.
func (r Request) answerCall(ctx context.Context, declared []string) (json.RawMessage, error) {
	list, listed := jsonrpc.Get(r.Params, "task", "responseModes")
	common, ok := jsonrpc.Strings(list)
	if listed && !ok {
		return nil, wire.InvalidParams("params.task.responseModes must be an array of strings")
	}
	created, err := r.Serve(ctx, r.Method, r.Params)
	id, ok := jsonrpc.GetString(created, "task", "taskId")
	if err != nil || !listed || !ok { // A4
		return created, err
	}
	common = slices.DeleteFunc(common, func(mode string) bool { return !slices.Contains(declared, mode) })
	tool, _ := jsonrpc.GetString(r.Params, "name")
	p := &pieces{r: r, id: shim.ID(id), streams: r.streamsBlocks(ctx, tool)}
	if slices.Contains(common, immediate) {
		if result, err := p.awaitInGrace(ctx, tool); !errors.Is(err, errLate) {
			return result, err
		}
	}
	switch {
	case slices.Contains(common, streaming) && (p.streams || !slices.Contains(common, immediate)): // A7
		return p.streamAnswer(ctx, created)
	case !slices.Contains(common, task): // A5
		return jsonrpc.With(created, json.RawMessage(`"`+task+`"`), "_meta", mcp.MetaFallbackMode), nil
	}
	return created, nil
}

// errLate says that a task has not ended in the grace of its tool.
var errLate = errors.New("the task has not ended yet")

// awaitInGrace returns the result of a task that ends in the grace of its tool (A6), or errLate.
func (p *pieces) awaitInGrace(ctx context.Context, tool string) (json.RawMessage, error) {
	grace := p.r.policyOf(ctx, tool).Grace
	if grace == config.Auto {
		grace = shim.LearnedGrace
	}
	ctx, cancel := context.WithTimeoutCause(ctx, grace, errLate)
	defer cancel()
	result, err := p.awaitOutcome(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errLate) {
		return nil, errLate
	}
	return result, err
}

// streamsBlocks reports whether the partial results of a tool are blocks of its result; otherwise
// they are hints.
func (r Request) streamsBlocks(ctx context.Context, tool string) bool {
	return r.policyOf(ctx, tool).Progress == config.ProgressContent
}

func (r Request) policyOf(ctx context.Context, tool string) config.Tool {
	return r.Endpoint.Config.Tool(tool, r.Endpoint.SaysOf(ctx, r.Session, tool))
}

// streamAnswer answers a call with its task and the blocks that are there, and then sends the others as
// they come (A9). A client that takes one answer only fetches them.
func (p *pieces) streamAnswer(ctx context.Context, created json.RawMessage) (json.RawMessage, error) {
	first, cancel := context.WithTimeoutCause(ctx, firstWait, errLate)
	err := p.follow(first, nil, func() error { return errEnough })
	cancel()
	if err != nil && !errors.Is(err, errEnough) && !errors.Is(err, errLate) {
		return created, nil // the task is there, and its blocks can be fetched
	}
	if p.hasEnded() || p.r.Send == nil {
		return p.makeResponse(ctx, created)
	}
	ctx, done, err := p.r.Endpoint.Streams.Enter(ctx)
	defer done()
	if err != nil {
		return created, nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(p.r.Client, stop)()
	send := func() error {
		response, err := p.makeResponse(ctx, created)
		created = nil
		if err != nil {
			return err
		}
		return p.r.Send(response)
	}
	if err = send(); err == nil {
		err = p.follow(ctx, nil, send)
	}
	switch {
	case err == nil:
		return p.makeResponse(ctx, nil)
	case ctx.Err() != nil:
		return nil, &wire.Failure{Code: mcp.CodeInternal, Message: "the stream of the task " + string(p.id) +
			" is over; tasks/result has the rest, with the number of the last block as lastSeqNr", Data: wire.RetryAfter(wire.DrainRetry.Milliseconds())}
	}
	return nil, err // it ends with an error, since blocks may be missing
}

// answerResult answers a tasks/result: with the present blocks after lastSeqNr (A12), or with the result,
// whose content is all blocks.
func (r Request) answerResult(ctx context.Context) (json.RawMessage, error) {
	after, at, err := readLastSeqNr(r.Params)
	if err != nil {
		return nil, err
	}
	text, ok := jsonrpc.GetString(r.Params, "taskId")
	if !ok {
		return nil, wire.InvalidParams("params.taskId must be a string")
	}
	id, err := shim.ParseID(text)
	if err != nil {
		return nil, err
	}
	t, err := r.Endpoint.Shim.Peek(ctx, r.Principal, r.Endpoint.Name, id)
	if err != nil {
		return nil, err
	}
	p := &pieces{r: r, id: id, streams: r.streamsBlocks(ctx, t.Tool), sent: after}
	var result json.RawMessage
	if !at {
		if result, err = r.Serve(ctx, r.Method, r.Params); err != nil || !p.streams {
			return result, err
		}
	}
	if err := p.follow(ctx, errEnough, func() error { return nil }); err != nil && !errors.Is(err, errEnough) { // the blocks that are there
		return nil, err
	}
	if at {
		return p.makeResponse(ctx, nil)
	}
	result, _ = content.Merge(result, p.blocks)
	return result, nil
}

// readLastSeqNr reads the number of the last block that a client has; ok says that there is one.
func readLastSeqNr(params json.RawMessage) (after int, ok bool, err error) {
	raw, ok := jsonrpc.Get(params, "lastSeqNr")
	if !ok {
		return 0, false, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if errors.Is(err, strconv.ErrRange) && f > 0 {
		err = nil
	}
	if err != nil || f < 1 || f != math.Trunc(f) {
		return 0, false, wire.InvalidParams("params.lastSeqNr must be a whole number from 1 on")
	}
	return int(min(f, 1<<31)), true, nil
}
