package upstream

import (
	"bytes"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// passNotification hands on what the server says beside the answer. A notification outside of any
// call goes to x.outside.
func (x *exchange) passNotification(m jsonrpc.Message) {
	x.told = true
	switch m.Method {
	case mcp.NotifyProgress:
		if !x.heardProgress(m.Params) {
			x.outside.takeNotification(shim.Notification{Method: m.Method, Params: m.Params})
		}
	case mcp.NotifyMessage:
		x.heardLog(m.Params)
	case mcp.NotifyCancelled:
		id, _ := jsonrpc.Get(m.Params, "requestId")
		x.asking.cancelQuestion(id)
	default:
		if to, ok := x.sink.(shim.Notifier); ok && mcp.Foreign(m.Method) {
			x.checkpoints.tellSink(func() { to.Notified(shim.Notification{Method: m.Method, Params: bytes.Clone(m.Params)}) })
			return
		}
		x.outside.takeNotification(shim.Notification{Method: m.Method, Params: m.Params})
	}
}

// heardProgress hands on progress that carries the token of this call, and reports whether it does.
// The progress of some servers does not rise: each message may be the text of a status or a piece of
// a result. The values for clients rise (shim.RaiseProgress).
func (x *exchange) heardProgress(params []byte) bool {
	if tokenOf(params) != x.checkpoints.state.ID {
		return false
	}
	p := progressOf(params)
	x.checkpoints.noteHeard(p.Progress)
	x.checkpoints.passProgress(p)
	return true
}

// tokenOf is the token of progress as nextID writes it; "" if it is missing.
func tokenOf(params []byte) string {
	raw, _ := jsonrpc.Get(params, mcp.MetaProgressToken)
	token, _ := jsonrpc.ParseEchoed(raw)
	return token.String()
}

func progressOf(params []byte) shim.Progress {
	p := shim.Progress{Raw: bytes.Clone(params), Progress: readNumber(params, "progress"), Total: readNumber(params, "total")}
	p.Message, _ = jsonrpc.GetString(params, "message")
	return p
}

// readNumber reads a JSON number; 0 for anything else.
func readNumber(obj []byte, name string) float64 {
	v, _ := jsonrpc.Get(obj, name)
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		return 0
	}
	return f
}

// heardLog hands on a log message, if somebody wants to hear its level. Another caller may have set
// the upstream session to a more talkative one.
func (x *exchange) heardLog(params []byte) {
	level, _ := jsonrpc.GetString(params, "level")
	if x.level == "" || mcp.LogSeverity(level) < mcp.LogSeverity(x.level) {
		return
	}
	x.checkpoints.tellSink(func() { x.sink.Log(shim.Log{Level: level, Raw: bytes.Clone(params)}) })
}

// cork has a sink hold back its messages, and let them go together. Only the goroutine that reads uses it.
type cork struct {
	to shim.Sink
	in bool
}

func (c *cork) setCork(in bool) {
	if to, ok := c.to.(shim.Corker); ok && c.in != in {
		c.in = in
		to.Cork(in)
	}
}
