package reading

import (
	"bytes"
	"encoding/json"
	"strings"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// ErrorOf returns the error of a server, for clients.
func ErrorOf(e *jsonrpc.Error) *shim.RPCError {
	return &shim.RPCError{Code: e.Code, Message: e.Message, Data: e.Data}
}

// asInternalError replaces an error that was meant for the gateway by an internal error. The
// original goes along as data.original.
func asInternalError(e *jsonrpc.Error, message string) shim.Reply {
	original, err := json.Marshal(ErrorOf(e))
	if err != nil {
		original = []byte("null") // the data is invalid JSON
	}
	data := append(append([]byte(`{"original":`), original...), '}')
	return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeInternal, Message: message, Data: data}}
}

// Response is an answer of a server, with the members of its result that say which kind it is.
type Response struct {
	jsonrpc.Message
	isError, ResultType, meta, requestState, Task json.RawMessage
}

var answerNames = []string{"isError", "resultType", "_meta", "requestState", "task"}

// ReadAnswer finds the members of a result.
func ReadAnswer(m jsonrpc.Message) Response {
	var found [5]json.RawMessage
	m.Pick(answerNames, found[:])
	return Response{m, found[0], found[1], found[2], found[3], found[4]}
}

// ErrorAnswer is an answer that is an error.
func ErrorAnswer(e *jsonrpc.Error) Response {
	return Response{Message: jsonrpc.Message{Kind: jsonrpc.ErrorResponse, Error: e}}
}

// IsToolError reports whether a tool ran and says that it failed.
func (a Response) IsToolError(method string) bool {
	return method == mcp.MethodToolsCall && string(a.isError) == "true"
}

// readReply makes a reply of an answer, whatever its kind.
func (a Response) readReply(method string) (reply shim.Reply, err error) {
	if a.Error != nil {
		return shim.Reply{Error: ErrorOf(a.Error)}, nil
	}
	if !jsonrpc.IsObject(a.Result) {
		return reply, notMCP("the server answered with a result that is no object")
	}
	reply = shim.Reply{Result: a.Result, IsError: a.IsToolError(method)}
	kind, typed := jsonrpc.String(a.ResultType)
	reply.Plain = a.meta == nil && a.requestState == nil && (a.ResultType == nil || kind == mcp.ResultComplete)
	reply.Typed = typed
	return reply, nil
}

// SessionReply reads the answer of a legacy server. It leaves out the members that would mislead a
// client: a resultType that asks or promises something, and the task that the server made of the
// call, whose id is secret (H14).
func SessionReply(method string, a Response) (shim.Reply, error) {
	reply, err := a.readReply(method)
	if err != nil || reply.Error != nil {
		return reply, err
	}
	if kind, _ := jsonrpc.String(a.ResultType); a.ResultType != nil && kind != mcp.ResultComplete {
		reply.Result = jsonrpc.Without(reply.Result, "resultType")
	}
	if a.meta != nil {
		reply.Result = WithoutRelatedTask(reply.Result)
	}
	return reply, nil
}

// ModernReply reads a result by its resultType. If that is missing, the result counts as complete:
// servers of the draft left it out, and S26 itself lets a client read it so.
func ModernReply(r shim.Request, a Response) (shim.Reply, error) {
	reply, err := a.readReply(r.Method)
	if err != nil || reply.Error != nil || a.ResultType == nil {
		return reply, err
	}
	switch word, _ := jsonrpc.String(a.ResultType); word {
	case mcp.ResultComplete:
		return reply, nil
	case mcp.ResultInputRequired:
		return inputRequired(r, reply)
	case mcp.ResultTask:
		return shim.Reply{}, notMCP("the server answered with a task where it must not, or with one that has no name") // T2, T14
	}
	return shim.Reply{}, notMCP("the server answered with an unknown type of result")
}

// inputRequired reads a result that asks. A result without questions suits every caller: the server
// only wants to be called again.
func inputRequired(r shim.Request, reply shim.Reply) (shim.Reply, error) {
	if !mcp.MayRequireInput(r.Method) {
		return shim.Reply{}, notMCP("the server asked for input where it must not")
	}
	round, refusal, err := ReadRound(r.Session, reply.Result)
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

// WithoutRelatedTask is an object without the related-task of its metadata, which names a task of
// the gateway's (H14).
func WithoutRelatedTask(obj []byte) []byte {
	return WithoutMeta(obj, mcp.MetaRelatedTask)
}

// WithoutMeta is an object without one member of its metadata. Metadata that would be empty then
// is left out.
func WithoutMeta(obj []byte, name string) []byte {
	if _, ok := jsonrpc.Get(obj, "_meta", name); !ok {
		return obj
	}
	return jsonrpc.WithoutEmpty(jsonrpc.Without(obj, "_meta", name), "_meta")
}

// ModernFailure is the reply for an error of a modern server; code is its code in the newest
// spelling.
func ModernFailure(code int64, rpc *jsonrpc.Error) shim.Reply {
	switch {
	case code == mcp.CodeHeaderMismatch:
		return asInternalError(rpc, "the server and the gateway disagree about the headers of the call")
	case code == mcp.CodeUnsupportedVersion:
		return asInternalError(rpc, "the server and the gateway have no protocol version in common")
	case code == mcp.CodeMissingCapability:
		e := ErrorOf(rpc)
		e.Code = code
		return shim.Reply{Error: e}
	case mcp.Reserved(rpc.Code):
		return asInternalError(rpc, "the server answered with an error that is not for clients")
	}
	return shim.Reply{Error: ErrorOf(rpc)}
}

// notMCP is the error of an answer that is not MCP.
func notMCP(message string) error {
	return &shim.UpstreamError{Kind: shim.KindProtocol, Message: message}
}

// ShowName is a reply to a request whose client has used another name for the tool than the server was called by
// (Request.Shown): it names that one wherever the server has named the other.
func ShowName(r shim.Request, reply shim.Reply) shim.Reply {
	if r.Shown == "" {
		return reply
	}
	shown := jsonrpc.AppendString(nil, r.Shown)
	rename := func(raw json.RawMessage) json.RawMessage {
		return bytes.ReplaceAll(raw, []byte(r.Name), shown[1:len(shown)-1])
	}
	if reply.Result != nil {
		reply.Result = rename(reply.Result)
	}
	if e := reply.Error; e != nil {
		reply.Error = &shim.RPCError{Code: e.Code, Message: strings.ReplaceAll(e.Message, r.Name, r.Shown), Data: rename(e.Data)}
	}
	return reply
}
