package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// Tools of the holding server.
const (
	holdTool  = "hold"  // is answered when it is cancelled, which is never
	quickTool = "quick" // is answered at once
	largeTool = "large" // is answered with a large result
)

// holder is an MCP server of either era whose calls stay open. In the legacy era it
// answers with an event stream that begins with an event, as servers do that can
// resume; in the modern one it keeps its peer waiting for the head of the response.
type holder struct {
	mu    sync.Mutex
	calls map[string]chan struct{} // open, by JSON-RPC id
}

func newHolder() *holder { return &holder{calls: map[string]chan struct{}{}} }

// ServeHTTP tells at GET how many calls are open.
func (h *holder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.Header.Get("Accept") != mcp.TypeSSE {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, _ = io.WriteString(w, strconv.Itoa(len(h.calls)))
		return
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id, method, params, err := readHeld(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name, _ := jsonrpc.GetString(params, "name")
	switch {
	case id == nil:
		if method == mcp.NotifyCancelled {
			cancelled, _ := jsonrpc.Get(params, "requestId")
			h.release(cancelled)
		}
		w.WriteHeader(http.StatusAccepted)
	case method == mcp.MethodInitialize:
		w.Header().Set(mcp.HeaderSession, "one")
		answer(w, id, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"hold","version":"1"}}`)
	case method == mcp.MethodDiscover:
		answer(w, id, discoverResult)
	case method == mcp.MethodToolsList:
		answer(w, id, holdTools)
	case method == "": // the answer to a question
		w.WriteHeader(http.StatusAccepted)
	case name == largeTool:
		answer(w, id, hugeResult)
	case name == holdTool, name == askTool:
		h.hold(w, r, id, name == askTool)
	default:
		answer(w, id, callResult)
	}
}

// readHeld reads a message, with as little work as can be: a call of megabytes is to keep the
// gateway busy, and not the server that shares its machine.
func readHeld(r *http.Request) (id json.RawMessage, method string, params json.RawMessage, err error) {
	body := make([]byte, max(0, r.ContentLength)) // the gateway always says it
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, "", nil, err
	}
	var members [3]json.RawMessage
	jsonrpc.Pick(body, []string{"id", "method", "params"}, members[:])
	method, _ = jsonrpc.String(members[1])
	return bytes.Clone(members[0]), method, members[2], nil // a call may be held for long, and not its text
}

const holdTools = `{"resultType":"complete","tools":[{"name":"hold","inputSchema":{"type":"object"}},{"name":"ask","inputSchema":{"type":"object"}},{"name":"quick","inputSchema":{"type":"object"}},{"name":"large","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`

// hugeResult has 20 MB.
var hugeResult = `{"resultType":"complete","content":[{"type":"text","text":"` + strings.Repeat("large ", 20_000_000/6) + `"}]}`

func answer(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", mcp.TypeJSON)
	for _, part := range []string{`{"jsonrpc":"2.0","id":`, string(id), `,"result":`, result, `}`} { // a large result is not copied
		_, _ = io.WriteString(w, part) // a client that is gone is no concern
	}
}

// hold keeps a call open until it is cancelled, after a question or without.
func (h *holder) hold(w http.ResponseWriter, r *http.Request, id json.RawMessage, asks bool) {
	released := make(chan struct{})
	h.mu.Lock()
	h.calls[string(id)] = released
	h.mu.Unlock()
	if r.Header.Get(mcp.HeaderProtocolVersion) != mcp.Version20260728 {
		w.Header().Set("Content-Type", mcp.TypeSSE)
		_, _ = fmt.Fprintf(w, "id: %d\ndata:\n\n", len(id))
		_ = http.NewResponseController(w).Flush()
	}
	if asks {
		question(w, string(id))
	}
	select {
	case <-released:
	case <-r.Context().Done():
		h.release(id)
	}
}

// release ends a call.
func (h *holder) release(id json.RawMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if released := h.calls[string(id)]; released != nil {
		close(released)
		delete(h.calls, string(id))
	}
}
