package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/mcp"
)

// Tools of the server. Its other names are answered at once.
const (
	toolEvent       = "event"        // answers by an event stream
	toolEvents      = "events"       // says progress five times at once, and then answers
	toolLarge       = "large"        // has a result of 1 MiB
	toolLargeChunks = "large_chunks" // has that without a length
	toolLargeEvent  = "large_event"  // has that by an event stream
	toolKilobyte    = "kilobyte"     // has one of 1 kB
	toolHold        = "hold"         // is answered when it is released
	toolStart       = "start_job"    // answers with the id of a job, which never ends
	toolStatus      = "job_status"   // says that a job runs
)

// answerText begins the text of every result of a tool but toolHold's.
const answerText = "The answer of a tool"

// heldText begins the text of a result of toolHold; the time of the answer follows, in
// nanoseconds since 1970. Whoever reads the result on the same machine knows how long it was
// on its way.
const heldText = "released at "

// Results of the server, by method.
const (
	initializeResult = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"null","version":"1"}}`
	discoverResult   = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":60000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"null","version":"1"}}}`
	toolsResult      = `{"resultType":"complete","tools":[{"name":"plain","inputSchema":{"type":"object"}},{"name":"always","inputSchema":{"type":"object"}},{"name":"keep","inputSchema":{"type":"object"}},{"name":"kilobyte","inputSchema":{"type":"object"}},{"name":"hold","inputSchema":{"type":"object"}},{"name":"start_job","inputSchema":{"type":"object"}},{"name":"job_status","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`
	callResult       = `{"resultType":"complete","content":[{"type":"text","text":"` + answerText + ` that does nothing at all, in about as many words as a short answer has."}]}`
)

// jobRuns is what the server says of every job.
const jobRuns = `{"resultType":"complete","content":[{"type":"text","text":"at work"}],"structuredContent":{"state":"running","done":1,"of":3}}`

// largeResult is a text with line ends and quotes, as the content of a file has them.
var largeResult = func() string {
	line := `\tif name, ok := tools[\"name\"]; ok { return name } // about as long as a line of source\n`
	return `{"resultType":"complete","content":[{"type":"text","text":"` + answerText + strings.Repeat(line, 1<<20/len(line)) + `"}]}`
}()

// kilobyteResult is one of an ordinary size.
var kilobyteResult = `{"resultType":"complete","content":[{"type":"text","text":"` + answerText + strings.Repeat(".", 1000) + `"}]}`

// server is the cheapest MCP server of either era that still reads its requests.
type server struct {
	mu   sync.Mutex
	held []chan struct{} // calls that are open, in the order in which they came

	started, polls atomic.Int64 // jobs, and questions about them
}

// ServeHTTP answers a message. GET tells how many calls are held, or with ?polls how often jobs were asked for; with ?every=10ms it first
// begins to release the oldest of them after each such time, until the process ends.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		s.control(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name string
			Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
		}
	}
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == mcp.MethodInitialize:
		w.Header().Set(mcp.HeaderSession, "one")
		writeJSON(w, m.ID, initializeResult)
	case m.Method == mcp.MethodDiscover:
		writeJSON(w, m.ID, discoverResult)
	case m.Method == mcp.MethodToolsList:
		writeJSON(w, m.ID, toolsResult)
	case m.Params.Name == toolEvent:
		writeEvent(w, m.ID, callResult)
	case m.Params.Name == toolEvents:
		writeEvent(w, m.ID, callResult, progress(m.Params.Meta.ProgressToken)...)
	case m.Params.Name == toolLargeChunks:
		w.Header().Set("Content-Type", mcp.TypeJSON)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":`+largeResult+"}")
	case m.Params.Name == toolLarge:
		writeJSON(w, m.ID, largeResult)
	case m.Params.Name == toolLargeEvent:
		writeEvent(w, m.ID, largeResult)
	case m.Params.Name == toolKilobyte:
		writeJSON(w, m.ID, kilobyteResult)
	case m.Params.Name == toolStart:
		writeJSON(w, m.ID, fmt.Sprintf(`{"resultType":"complete","content":[],"structuredContent":{"id":"job-%d"}}`, s.started.Add(1)))
	case m.Params.Name == toolStatus:
		s.polls.Add(1)
		writeJSON(w, m.ID, jobRuns)
	case m.Params.Name == toolHold:
		s.hold(w, r, m.ID)
	default:
		writeJSON(w, m.ID, callResult)
	}
}

// writeJSON answers with a body of known length. A client that is gone is no concern of this
// server, here and below.
func writeJSON(w http.ResponseWriter, id json.RawMessage, result string) {
	parts := []string{`{"jsonrpc":"2.0","id":`, string(id), `,"result":`, result, "}"}
	length := 0
	for _, text := range parts {
		length += len(text)
	}
	w.Header().Set("Content-Type", mcp.TypeJSON)
	w.Header().Set("Content-Length", strconv.Itoa(length))
	for _, text := range parts {
		_, _ = w.Write([]byte(text))
	}
}

// progress are five events under a token.
func progress(token json.RawMessage) (events []string) {
	for i := range 5 {
		events = append(events, fmt.Sprintf("event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":%d,\"message\":\"step\"}}\n\n", token, i+1))
	}
	return events
}

// writeEvent answers with an event stream, in which other events come first.
func writeEvent(w http.ResponseWriter, id json.RawMessage, result string, first ...string) {
	w.Header().Set("Content-Type", mcp.TypeSSE)
	_, _ = io.WriteString(w, strings.Join(first, ""))
	for _, text := range []string{"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":", string(id), `,"result":`, result, "}\n\n"} {
		_, _ = w.Write([]byte(text))
	}
}

// hold keeps a call open until it is released. To a legacy client it says an event at once, as
// servers do that can resume; a modern one waits for the head of the response.
func (s *server) hold(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
	released := make(chan struct{})
	s.mu.Lock()
	s.held = append(s.held, released)
	s.mu.Unlock()
	legacy := r.Header.Get(mcp.HeaderProtocolVersion) != mcp.Version20260728
	if legacy {
		w.Header().Set("Content-Type", mcp.TypeSSE)
		_, _ = w.Write([]byte("id: 1\ndata:\n\n"))
		_ = http.NewResponseController(w).Flush()
	}
	select {
	case <-released:
	case <-r.Context().Done():
		return
	}
	result := fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"%s%d"}]}`, heldText, time.Now().UnixNano())
	if legacy {
		writeEvent(w, id, result)
	} else {
		writeJSON(w, id, result)
	}
}

func (s *server) control(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Accept") == mcp.TypeSSE { // the stream of a session, which this server does not have
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if every, err := time.ParseDuration(r.FormValue("every")); err == nil {
		go func() {
			for range time.Tick(every) {
				s.release()
			}
		}()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	count := len(s.held)
	if r.Form.Has("polls") {
		count = int(s.polls.Load())
	}
	_, _ = w.Write([]byte(strconv.Itoa(count)))
}

// release answers the oldest call.
func (s *server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) > 0 {
		close(s.held[0])
		s.held = s.held[1:]
	}
}

// buffers is a pool for the bodies that a proxy copies.
type buffers struct{ sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if one, ok := b.Pool.Get().(*[]byte); ok {
		return *one
	}
	return make([]byte, 32<<10)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(one []byte) { b.Pool.Put(&one) }

// reverseProxy is what a plain HTTP proxy costs; pool may be nil.
func reverseProxy(to string, pool httputil.BufferPool) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	transport.DisableCompression = true
	proxy := &httputil.ReverseProxy{
		Transport:  transport,
		BufferPool: pool,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", to
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Otherwise the server closes the request's body as soon as the answer begins. The
		// transport may not have seen its end by then, and gives up the connection.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}
