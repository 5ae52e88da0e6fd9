package attack

import (
	"fmt"
	"strings"

	"taskgate/internal/wiretest"
)

// message is a request to the gateway.
type message struct {
	path, body string
	legacy     bool
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

// keptBytes is the size of such a result.
const keptBytes = 4 << 20

func listTools() message {
	return message{path: "/evil", body: wiretest.Macros.Replace(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{$META}}}`)}
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
