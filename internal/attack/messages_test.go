package attack

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
)

// message is a request to the gateway.
type message struct {
	path, body string
	legacy     bool
	token      func() string // of each, in place of the caller's
}

// method is what the message asks for.
func (m message) method() string {
	msg, _ := jsonrpc.Parse([]byte(m.body)) // ours
	return msg.Method
}

// names is an object of about n bytes that consists of names.
func names(n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := 0; b.Len() < n-12; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%x":0`, i)
	}
	return b.String() + "}"
}

// deep is an object that nests so deeply around so many bytes.
func deep(levels, n int) string {
	return strings.Repeat(`{"b":0,"a":`, levels) + "[" + strings.Repeat("0,", n/2) + "0]" + strings.Repeat("}", levels)
}

// forged is a state that looks as if it could be opened.
var forged = `"requestState":"tg1.own.` + strings.Repeat("A", 120) + `","inputResponses":{},`

const version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`

// modern is a call in the modern era, with these capabilities.
func modern(tool, params, capabilities string) message {
	if params == "" {
		params = `"arguments":{}`
	}
	return message{path: "/mod", body: fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s",%s,"_meta":{%s,"io.modelcontextprotocol/clientCapabilities":%s}}}`,
		tool, params, version, capabilities)}
}

func modernInfo(more string) message {
	return message{path: "/mod", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"_meta":{` + version +
		`,"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"n","version":"1","x":` + more + `}}}}`}
}

// answers are answers of so many bytes to a task that nobody knows.
func answers(n int) message {
	return message{path: "/mod", body: wiretest.Macros.Replace(`{"jsonrpc":"2.0","id":1,"method":"tasks/update","params":{"taskId":"00000000-0000-4000-8000-000000000000","_meta":{$TASKS},"inputResponses":` +
		strings.ReplaceAll(names(n), ":0", ":{}") + `}}`)}
}

// keepsTask is a call that becomes a task with a large result.
func keepsTask() message {
	return message{path: "/kept", body: wiretest.Macros.Replace(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"large","arguments":{},"_meta":{$TASKS}}}`)}
}

// keepTasks is an attack of such calls. The bytes of their results count as sent.
func keepTasks(w *world) sent {
	s := calls(100, keepsTask)(w)
	s.bytes += s.messages * keptBytes
	return s
}

// keptBytes is the size of such a result, pieceBytes that of a piece where one comes in pieces, and askedBytes that of a
// server's question.
const (
	keptBytes  = 4 << 20
	pieceBytes = 64 << 10
	askedBytes = 3 << 20
)

// inSessions is an attack of so many sessions, each of which sends one message.
func inSessions(n int, m message) func(w *world) sent {
	return func(w *world) (s sent) {
		var all sync.WaitGroup
		var next, bytes atomic.Int64
		begin := initialize(100, 100)
		for range 16 {
			all.Go(func() {
				for int(next.Add(1)) <= n {
					_, size, session, _ := w.postIn("", malloryKey, begin) // whatever it gets
					_, more, _, _ := w.postIn(session, malloryKey, m)
					bytes.Add(size + more)
				}
			})
		}
		all.Wait()
		return sent{2 * n, n*(len(begin.body)+len(m.body)) + int(bytes.Load())}
	}
}

// tellsInSession is a call whose stream keptBytes go over, and keepsPieces one that becomes a task with as many in pieces.
var (
	tellsInSession = message{path: "/leg", legacy: true, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"tells","arguments":{},"_meta":{"progressToken":"p"}}}`}
	keepsPieces    = message{path: "/slow", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tells","arguments":{"on":"1"},"_meta":{"progressToken":"p",` + version +
		`,"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{},"dev.taskgate/partials":{}}}}}}`}
)

// isAsked is a call that becomes a task whose server asks askedBytes.
var isAsked = message{path: "/slow", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"asks","arguments":{},"_meta":{` + version +
	`,"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`}

// fill is an attack of such calls. What each has the server say, so many bytes, counts as sent.
func fill(n, says int, m message) func(w *world) sent {
	return func(w *world) sent {
		s := calls(n, func() message { return m })(w)
		s.bytes += s.messages * says
		return s
	}
}

func listTools() message {
	return message{path: "/evil", body: wiretest.Macros.Replace(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{$META}}}`)}
}

// stranger is a message without a credential, and madeUp a call with a token that nobody has given out.
func stranger(m message) message {
	m.path, m.token = "/open", func() string { return "" }
	return m
}

func madeUp() message {
	m := modern("echo", "", "{}")
	m.path, m.token = "/passes", rand.Text
	return m
}

// listens is a stream that is told of changes of a list.
func listens() message {
	return message{path: "/mod", body: wiretest.Macros.Replace(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{$META}}}`)}
}

// initialize begins a session, with so many bytes of capabilities and clientInfo.
func initialize(capabilities, info int) message {
	return message{path: "/leg", legacy: true, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"x":"%s"},"clientInfo":{"name":"n","version":"1","x":"%s"}}}`,
		strings.Repeat("x", capabilities-8), strings.Repeat("x", info))}
}

func fields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "A%d:\r\n", i)
	}
	return b.String()
}

// halfBody is the rest of a head that is just taken, with half a body.
func halfBody() string {
	return "Authorization: Bearer " + malloryKey + "\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\nContent-Length: 10\r\n" +
		strings.Repeat("L: "+strings.Repeat("x", 155)+"\r\n", 190) + "\r\n{"
}
