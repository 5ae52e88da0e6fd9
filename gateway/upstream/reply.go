package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// rpcError is a server's error in the words of the shim.
func rpcError(e *jsonrpc.Error) *shim.RPCError {
	return &shim.RPCError{Code: e.Code, Message: e.Message, Data: e.Data}
}

// ours is an internal error in place of one that was meant for us. The original
// goes along as data.original.
func ours(e *jsonrpc.Error, message string) shim.Reply {
	original, err := json.Marshal(rpcError(e))
	if err != nil {
		original = []byte("null") // data that is not JSON
	}
	data := append(append([]byte(`{"original":`), original...), '}')
	return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeInternal, Message: message, Data: data}}
}

// resultNames are the members of a result that say what it is.
var resultNames = []string{"isError", "resultType", "_meta", "requestState"}

// readResult reads an answer that is a result or an error and nothing besides, and finds the
// members of resultNames. It is one pass for all of them, as a result may be large.
func readResult(method string, m jsonrpc.Message) (reply shim.Reply, found [4]json.RawMessage, err error) {
	if m.Error != nil {
		return shim.Reply{Error: rpcError(m.Error)}, found, nil
	}
	if !jsonrpc.IsObject(m.Result) {
		return reply, found, protocolError("the server answered with a result that is no object", nil)
	}
	m.PickResult(resultNames, found[:])
	reply = shim.Reply{Result: m.Result, IsError: method == mcp.MethodToolsCall && string(found[0]) == "true"}
	kind, typed := jsonrpc.String(found[1])
	reply.Plain = found[2] == nil && found[3] == nil && (found[1] == nil || kind == mcp.ResultComplete)
	reply.Typed = typed
	return reply, found, nil
}

// sessionReply reads the answer of a legacy server. It leaves out what would mean something
// else to a client: a resultType that asks or promises something, and the task that the
// server made of the call, whose id is nobody's business (H14).
func sessionReply(method string, m jsonrpc.Message) (shim.Reply, error) {
	reply, found, err := readResult(method, m)
	if err != nil || reply.Error != nil {
		return reply, err
	}
	if kind, _ := jsonrpc.String(found[1]); found[1] != nil && kind != mcp.ResultComplete {
		reply.Result = jsonrpc.Without(reply.Result, "resultType")
	}
	if found[2] != nil {
		reply.Result = unrelated(reply.Result)
	}
	return reply, nil
}

// isToolError reports whether a tool ran and says that it failed.
func isToolError(method string, result []byte) bool {
	if method != mcp.MethodToolsCall {
		return false
	}
	v, _ := jsonrpc.Get(result, "isError")
	return string(v) == "true"
}

// modernReply reads a result by its resultType. One without is taken as
// complete: servers of the draft left it out, and S26 itself lets a client read
// it so.
func modernReply(r shim.Request, m jsonrpc.Message) (shim.Reply, error) {
	reply, found, err := readResult(r.Method, m)
	if err != nil || reply.Error != nil || found[1] == nil {
		return reply, err
	}
	switch word, _ := jsonrpc.String(found[1]); word {
	case mcp.ResultComplete:
		return reply, nil
	case mcp.ResultInputRequired:
		return inputRequired(r, reply)
	case mcp.ResultTask:
		return shim.Reply{}, protocolError("the server answered with a task where it must not, or with one that has no name", nil) // T2, T14
	}
	return shim.Reply{}, protocolError("the server answered with an unknown type of result", nil)
}

// inputRequired reads a result that asks. One that asks nothing is for every caller: the
// server only wants to be called again.
func inputRequired(r shim.Request, reply shim.Reply) (shim.Reply, error) {
	if !mcp.MayRequireInput(r.Method) {
		return shim.Reply{}, protocolError("the server asked for input where it must not", nil)
	}
	round, refusal, err := roundOf(r.Session, reply.Result)
	switch {
	case err != nil:
		return shim.Reply{}, err
	case refusal != nil:
		return shim.Reply{Error: refusal}, nil
	case !r.Relay && !r.Rounds && len(round.Questions) > 0:
		return shim.Reply{Error: &shim.RPCError{
			Code: mcp.CodeInternal, Message: "the server asked for input, which cannot be relayed to this client",
		}}, nil
	}
	reply.InputRequired, reply.Round = true, round
	return reply, nil
}

func refusal(id jsonrpc.ID, code int64, method string) []byte {
	return jsonrpc.AppendError(nil, id, notSupported(code, method))
}

func notSupported(code int64, method string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: code, Message: "the client does not support " + method}
}

// responseTo is the response to a question with the answer of that number, or without
// one if there are fewer. It reports false for a checkpoint of somebody else, with an id
// that is none.
func responseTo(p pending, answers []shim.Answer, i int, failed error) (body []byte, ok bool) {
	id, err := jsonrpc.ParseID(p.ID)
	if err != nil {
		return nil, false
	}
	var a shim.Answer
	if i < len(answers) {
		a = answers[i]
	}
	return response(id, p, a, failed), true
}

// response spells one answer as the JSON-RPC response that the server waits for.
func response(id jsonrpc.ID, p pending, a shim.Answer, failed error) []byte {
	switch {
	case errors.Is(failed, shim.ErrNoAsk):
		return refusal(id, mcp.CodeMethodNotFound, p.Method)
	case failed == nil && a.Error != nil:
		return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: a.Error.Code, Message: a.Error.Message, Data: a.Error.Data})
	case failed == nil && len(a.Result) > 0:
		return jsonrpc.AppendResult(nil, id, a.Result)
	}
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: "the client could not be asked"})
}

// answer posts a response. It is tried again while ctx lasts, each time under life.
func (w *wire) answer(ctx, life context.Context, to target, body []byte) error {
	err := ready(life)
	if err != nil {
		return err
	}
	for try := range 3 {
		if try > 0 {
			if err := work.Pause(ctx, firstRetry<<try); err != nil {
				return err
			}
		}
		if err = w.tellSoon(life, to, body); err == nil {
			return nil
		}
		if se, ok := err.(*statusError); ok && se.status < 500 && se.status != 429 {
			return answerRefused(se)
		}
		if errors.Is(err, errSlow) && ctx.Err() == nil {
			return fail(kindTimeout, "the server did not take the answer to its question", err)
		}
	}
	return err
}

func answerRefused(se *statusError) error {
	if se.lost() {
		return se.upstream() // not as proof of anything about the call, which runs
	}
	return protocolError(fmt.Sprintf("the server refused the answer to its question with HTTP status %d", se.status), se)
}
