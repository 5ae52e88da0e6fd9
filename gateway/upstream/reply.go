package upstream

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

func rpcError(e *jsonrpc.Error) *shim.RPCError {
	return &shim.RPCError{Code: e.Code, Message: e.Message, Data: e.Data}
}

// asInternalError replaces an error that was meant for the gateway by an internal error. The
// original goes along as data.original.
func asInternalError(e *jsonrpc.Error, message string) shim.Reply {
	original, err := json.Marshal(rpcError(e))
	if err != nil {
		original = []byte("null") // the data is invalid JSON
	}
	data := append(append([]byte(`{"original":`), original...), '}')
	return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeInternal, Message: message, Data: data}}
}

// answer is an answer, with the members of its result that say which kind it is.
type answer struct {
	jsonrpc.Message
	isError, resultType, meta, requestState, task json.RawMessage
}

var answerNames = []string{"isError", "resultType", "_meta", "requestState", "task"}

// readAnswer finds the members of a result.
func readAnswer(m jsonrpc.Message) answer {
	var found [5]json.RawMessage
	m.Pick(answerNames, found[:])
	return answer{m, found[0], found[1], found[2], found[3], found[4]}
}

// errorAnswer is an answer that is an error.
func errorAnswer(e *jsonrpc.Error) answer {
	return answer{Message: jsonrpc.Message{Kind: jsonrpc.ErrorResponse, Error: e}}
}

// isToolError reports whether a tool ran and says that it failed.
func (a answer) isToolError(method string) bool {
	return method == mcp.MethodToolsCall && string(a.isError) == "true"
}

// readReply makes a reply of an answer, whatever its kind.
func (a answer) readReply(method string) (reply shim.Reply, err error) {
	if a.Error != nil {
		return shim.Reply{Error: rpcError(a.Error)}, nil
	}
	if !jsonrpc.IsObject(a.Result) {
		return reply, protocolError("the server answered with a result that is no object", nil)
	}
	reply = shim.Reply{Result: a.Result, IsError: a.isToolError(method)}
	kind, typed := jsonrpc.String(a.resultType)
	reply.Plain = a.meta == nil && a.requestState == nil && (a.resultType == nil || kind == mcp.ResultComplete)
	reply.Typed = typed
	return reply, nil
}

// sessionReply reads the answer of a legacy server. It leaves out the members that would mislead a
// client: a resultType that asks or promises something, and the task that the server made of the
// call, whose id is secret (H14).
func sessionReply(method string, a answer) (shim.Reply, error) {
	reply, err := a.readReply(method)
	if err != nil || reply.Error != nil {
		return reply, err
	}
	if kind, _ := jsonrpc.String(a.resultType); a.resultType != nil && kind != mcp.ResultComplete {
		reply.Result = jsonrpc.Without(reply.Result, "resultType")
	}
	if a.meta != nil {
		reply.Result = withoutRelatedTask(reply.Result)
	}
	return reply, nil
}

// modernReply reads a result by its resultType. If that is missing, the result counts as complete:
// servers of the draft left it out, and S26 itself lets a client read it so.
func modernReply(r shim.Request, a answer) (shim.Reply, error) {
	reply, err := a.readReply(r.Method)
	if err != nil || reply.Error != nil || a.resultType == nil {
		return reply, err
	}
	switch word, _ := jsonrpc.String(a.resultType); word {
	case mcp.ResultComplete:
		return reply, nil
	case mcp.ResultInputRequired:
		return inputRequired(r, reply)
	case mcp.ResultTask:
		return shim.Reply{}, protocolError("the server answered with a task where it must not, or with one that has no name", nil) // T2, T14
	}
	return shim.Reply{}, protocolError("the server answered with an unknown type of result", nil)
}

// inputRequired reads a result that asks. A result without questions suits every caller: the server
// only wants to be called again.
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

// withoutRelatedTask is an object without the related-task of its metadata, which names a task of
// the gateway's (H14).
func withoutRelatedTask(obj []byte) []byte {
	return withoutMeta(obj, mcp.MetaRelatedTask)
}

// withoutMeta is an object without one member of its metadata. Metadata that would be empty then
// is left out.
func withoutMeta(obj []byte, name string) []byte {
	if _, ok := jsonrpc.Get(obj, "_meta", name); !ok {
		return obj
	}
	return jsonrpc.WithoutEmpty(jsonrpc.Without(obj, "_meta", name), "_meta")
}

// modernFailure is the reply for an error of a modern server; code is its code in the newest
// spelling.
func modernFailure(code int64, rpc *jsonrpc.Error) shim.Reply {
	switch {
	case code == mcp.CodeHeaderMismatch:
		return asInternalError(rpc, "the server and the gateway disagree about the headers of the call")
	case code == mcp.CodeUnsupportedVersion:
		return asInternalError(rpc, "the server and the gateway have no protocol version in common")
	case code == mcp.CodeMissingCapability:
		e := rpcError(rpc)
		e.Code = code
		return shim.Reply{Error: e}
	case mcp.Reserved(rpc.Code):
		return asInternalError(rpc, "the server answered with an error that is not for clients")
	}
	return shim.Reply{Error: rpcError(rpc)}
}
