package upstream

import (
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// notification hands on what the server says beside the answer. What belongs to
// no call goes to whoever listens in the session.
func (x *exchange) notification(m jsonrpc.Message) {
	if x.hear != nil {
		x.hear(m)
		return
	}
	switch m.Method {
	case mcp.NotifyProgress:
		x.heardProgress(m.Params)
	case mcp.NotifyMessage:
		x.heardLog(m.Params)
	case mcp.NotifyCancelled:
		// The server withdraws a question. It is looked for while one waits (ask.go),
		// but where it was taken over, which is asked beside the stream.
		if x.task != nil && x.aside != nil {
			id, _ := jsonrpc.Get(m.Params, "requestId")
			x.aside.cancelled(id)
		}
	default:
		x.h.heard(x.ses, shim.Notification{Method: m.Method, Params: m.Params})
	}
}

// heardProgress hands on progress that carries our token. That it strictly
// increases is the server's duty and not checked: a step back harms nobody here.
func (x *exchange) heardProgress(params []byte) {
	token, ok := jsonrpc.GetString(params, mcp.MetaProgressToken)
	if !ok || token != x.state.ID {
		return
	}
	p := shim.Progress{Raw: raw(params), Progress: number(params, "progress"), Total: number(params, "total")}
	p.Message, _ = jsonrpc.GetString(params, "message")
	if x.unnoted {
		x.unnoted = false
		x.mu.Lock() // until it is handed over: another goroutine may hand over a newer one
		defer x.mu.Unlock()
		p.Checkpoint = x.state.encode()
	}
	x.sink.Progress(p)
}

// number reads a JSON number, 0 if it is none.
func number(obj []byte, name string) float64 {
	v, _ := jsonrpc.Get(obj, name)
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		return 0
	}
	return f
}

// hintLevel is the level from which on log messages are partial results.
const hintLevel = "info"

// levelOf is the least severe level of log messages that somebody wants of a call, ""
// if nobody wants any. A word that is no level is for all that the server sends.
func levelOf(r shim.Request) string {
	if r.LogHints && (r.LogLevel == "" || mcp.LogSeverity(r.LogLevel) > mcp.LogSeverity(hintLevel)) {
		return hintLevel
	}
	return r.LogLevel
}

// levelFor is the level that a legacy server is asked for, "" for none: all that it
// sends by itself may not be enough.
func levelFor(r shim.Request) string {
	if r.LogHints && mcp.LogSeverity(r.LogLevel) < 0 {
		return hintLevel
	}
	return levelOf(r)
}

// heardLog hands on a log message from the level on that somebody wants to hear.
// The upstream session may be set to a more talkative one for another caller.
func (x *exchange) heardLog(params []byte) {
	level, _ := jsonrpc.GetString(params, "level")
	if x.level == "" || mcp.LogSeverity(level) < mcp.LogSeverity(x.level) {
		return
	}
	x.sink.Log(shim.Log{Level: level, Raw: raw(params)})
}

// heard takes a notification that belongs to no call.
func (h *HTTP) heard(ses *session, n shim.Notification) {
	if n.Method == mcp.NotifyToolsListChanged {
		h.tools.changed(ses)
	}
	if ses != nil {
		n.Params = raw(n.Params)
		if !ses.ears.hear(n) && n.Method == mcp.NotifyElicitationComplete {
			ses.get.completed(n.Params)
		}
	}
}
