package dialect

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// OriginExt is the Task.Origin of tasks made in the extension's dialect.
const OriginExt = "ext"

// Ext is the io.modelcontextprotocol/tasks extension (protocol.md section 3).
var Ext extension

// extension is an empty type, so that callers of both dialects read alike.
type extension struct{}

// Created is the CreateTaskResult of a new task: flat, and free of outcome, questions and
// requestState (T14, T15).
func (extension) Created(t shim.Task) json.RawMessage {
	o := newObject(320)
	o.str("resultType", "task")
	o.task(t, "ttlMs", "pollIntervalMs")
	return o.done()
}

// Got is the result of tasks/get: resultType is always "complete" (T22), and the members after the
// shared ones depend on the status (T23–T28). version is the reader's; see ErrorCode.
func (e extension) Got(version string, t shim.Task) json.RawMessage {
	o := newObject(e.size(t))
	o.str("resultType", "complete")
	return e.detailed(o, version, t)
}

// Changed is the params of notifications/tasks: the members that tasks/get would show now, outside
// of a result (T43).
func (e extension) Changed(version string, t shim.Task) json.RawMessage {
	return e.detailed(newObject(e.size(t)), version, t)
}

func (extension) size(t shim.Task) int {
	size := 320
	if t.Outcome != nil {
		size += len(t.Outcome.Result) + len(t.Outcome.Error)
	}
	return size
}

// detailed appends a DetailedTask.
func (extension) detailed(o *object, version string, t shim.Task) []byte {
	o.task(t, "ttlMs", "pollIntervalMs")
	switch t.Status {
	case shim.InputRequired:
		o.raw("inputRequests", InputRequests(t.Questions))
	case shim.Completed:
		if t.Outcome != nil {
			o.raw("result", inlined(t.Outcome.Result))
		}
	case shim.Failed:
		if t.Outcome != nil {
			o.raw("error", errorFor(version, t.Outcome.Error))
		}
	}
	return o.done()
}

// Ack is the empty acknowledgement of tasks/update and tasks/cancel (T34, T41).
func (extension) Ack() json.RawMessage { return json.RawMessage(`{"resultType":"complete"}`) }

// InputRequests are exactly the outstanding questions (T24), in the form for a modern client, in a
// task or by a result (2.7).
func InputRequests(questions []shim.Question) json.RawMessage {
	o := newObject(256)
	for _, q := range questions {
		if !q.Outstanding() {
			continue
		}
		r := newObject(len(q.Params) + 64)
		r.str("method", q.Method)
		if q.Params != nil {
			r.raw("params", asked(q.Params))
		} else {
			// The schema lets roots/list omit params; go-sdk 1.8.0's client fails on that
			// ("unexpected end of JSON input").
			r.raw("params", []byte("{}"))
		}
		o.raw(q.Key, r.done())
	}
	return o.done()
}

// asked returns the params of a question after removing the members that only legacy clients use:
// the id by which a URL elicitation is reported as complete (protocol.md 7.4), a task to be made of
// it, and the marks of its envelope. The rest is the server's, byte for byte.
func asked(params json.RawMessage) json.RawMessage {
	for _, path := range [][]string{
		{"elicitationId"}, {"task"}, {"_meta", mcp.MetaProgressToken}, {"_meta", mcp.MetaRelatedTask},
	} {
		params = jsonrpc.Without(params, path...)
	}
	return params
}

// inlined returns a result in the form for a completed task: with the resultType that a 2026-07-28
// result must carry (clients reject one without it, protocol.md Appendix C.2), but free of
// related-task metadata (T29, H14). All other members are the upstream's, byte for byte.
func inlined(result json.RawMessage) []byte {
	var have [2]json.RawMessage
	jsonrpc.Pick(result, []string{"resultType", "_meta"}, have[:]) // in one pass: it may be large
	out := result
	if have[0] == nil {
		out = jsonrpc.With(out, []byte(`"complete"`), "resultType")
	}
	if _, ok := jsonrpc.Get(have[1], mcp.MetaRelatedTask); ok {
		out = jsonrpc.Without(out, "_meta", mcp.MetaRelatedTask)
	}
	return out
}
