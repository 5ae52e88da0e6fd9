package upstream

import (
	"encoding/json"
	"slices"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
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

// plainReply reads an answer that is a result or an error and nothing besides.
func plainReply(method string, m jsonrpc.Message) (shim.Reply, error) {
	if m.Error != nil {
		return shim.Reply{Error: rpcError(m.Error)}, nil
	}
	if !jsonrpc.IsObject(m.Result) {
		return shim.Reply{}, protocolError("the server answered with a result that is no object", nil)
	}
	return shim.Reply{Result: m.Result, IsError: isToolError(method, m.Result)}, nil
}

// isToolError reports whether a tool ran and says that it failed.
func isToolError(method string, result []byte) bool {
	if method != mcp.MethodToolsCall {
		return false
	}
	v, _ := jsonrpc.Get(result, "isError")
	return string(v) == "true"
}

// mayAsk are the methods whose answer may be a question (protocol.md 2.7).
var mayAsk = []string{mcp.MethodToolsCall, mcp.MethodPromptsGet, mcp.MethodResourcesRead}

// modernReply reads a result by its resultType. One without is taken as
// complete: servers of the draft left it out, and S26 itself lets a client read
// it so.
func modernReply(r shim.Request, m jsonrpc.Message) (shim.Reply, error) {
	reply, err := plainReply(r.Method, m)
	if err != nil || reply.Error != nil {
		return reply, err
	}
	kind, found := jsonrpc.Get(reply.Result, "resultType")
	if !found {
		return reply, nil
	}
	switch word, _ := jsonrpc.GetString(kind); word {
	case mcp.ResultComplete:
		return reply, nil
	case mcp.ResultInputRequired:
		return inputRequired(r, reply)
	case mcp.ResultTask:
		return shim.Reply{}, protocolError("the server answered with a task, which it was not asked for", nil) // T2
	}
	return shim.Reply{}, protocolError("the server answered with an unknown type of result", nil)
}

func inputRequired(r shim.Request, reply shim.Reply) (shim.Reply, error) {
	if !slices.Contains(mayAsk, r.Method) {
		return shim.Reply{}, protocolError("the server asked for input where it must not", nil)
	}
	if !r.Relay && !r.Rounds {
		return shim.Reply{Error: &shim.RPCError{
			Code: mcp.CodeInternal, Message: "the server asked for input, which cannot be relayed to this client",
		}}, nil
	}
	reply.InputRequired = true
	if r.Rounds {
		if reply.Round, reply.Error = roundOf(r.Session, reply.Result); reply.Error != nil {
			return shim.Reply{Error: reply.Error}, nil
		}
	}
	return reply, nil
}
