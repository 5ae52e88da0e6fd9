package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/mcp"
)

// answerText begins the text of every result of a tool.
const answerText = "The answer of a tool"

// Results of the null upstream, by method.
const (
	discoverResult = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":60000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"null","version":"1"}}}`
	toolsResult    = `{"resultType":"complete","tools":[{"name":"plain","inputSchema":{"type":"object"}},{"name":"auto","inputSchema":{"type":"object"}},{"name":"always","inputSchema":{"type":"object"}},{"name":"keep","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`
	callResult     = `{"resultType":"complete","content":[{"type":"text","text":"` + answerText + ` that does nothing at all, in about as many words as a short answer has."}]}`
)

// nullUpstream is the cheapest MCP server of protocol version 2026-07-28 that
// still reads its requests.
func nullUpstream(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	request, err := readNull(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if request.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if request.Params.Name == toolLargeEvent {
		writeEvent(w, request.ID)
		return
	}
	status, parts := request.answer()
	w.Header().Set("Content-Type", mcp.TypeJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(parts[0])+len(parts[1])+len(parts[2])))
	w.WriteHeader(status)
	for _, text := range parts {
		_, _ = io.WriteString(w, text) // a client that is gone is no concern of this server
	}
}

// nullRequest is a request to the null upstream.
type nullRequest struct {
	ID     json.RawMessage
	Method string
	Params struct{ Name string }
}

func readNull(body []byte) (r nullRequest, err error) { return r, json.Unmarshal(body, &r) }

// answer is the answer in three parts, of which the second may be large, and its HTTP status.
func (r nullRequest) answer() (status int, parts [3]string) {
	status, member, value := http.StatusOK, "result", callResult
	switch r.Method {
	case mcp.MethodToolsCall:
		if r.Params.Name == toolLarge {
			value = largeResult
		}
	case mcp.MethodDiscover:
		value = discoverResult
	case mcp.MethodToolsList:
		value = toolsResult
	default:
		status, member, value = http.StatusNotFound, "error", `{"code":-32601,"message":"no such method"}`
	}
	return status, [3]string{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"%s":`, r.ID, member), value, "}"}
}

// nullPipe is the null upstream over standard input and output: it answers each line with one,
// until there are no more.
func nullPipe(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		request, err := readNull(line)
		if err != nil {
			return err
		}
		if request.ID == nil {
			continue
		}
		_, parts := request.answer()
		if _, err := io.WriteString(out, parts[0]+parts[1]+parts[2]+"\n"); err != nil {
			return err
		}
	}
}

// Tools with a result of 1 MiB: as JSON, and as the event of a stream.
const (
	toolLarge      = "large"
	toolLargeEvent = "large_event"
)

// largeResult is a text with line ends and quotes, as the content of a file has them.
var largeResult = func() string {
	line := `\tif name, ok := tools[\"name\"]; ok { return name } // about as long as a line of source\n`
	return `{"resultType":"complete","content":[{"type":"text","text":"` + answerText + strings.Repeat(line, 1<<20/len(line)) + `"}]}`
}()

// writeEvent answers with the large result on an event stream.
func writeEvent(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Content-Type", mcp.TypeSSE)
	for _, text := range []string{"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":", string(id), `,"result":`, largeResult, "}\n\n"} {
		_, _ = io.WriteString(w, text)
	}
}

// reverseProxy is what a plain HTTP proxy costs.
func reverseProxy(to string) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	transport.DisableCompression = true
	proxy := &httputil.ReverseProxy{
		Transport: transport,
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

// recordKey holds a value of the size of a small task.
const recordKey = "bench:record"

// redisGet is the least that any HTTP service does that reads one record.
func redisGet(addr string) http.Handler {
	client := newRedis(addr, 64)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		value, err := client.Get(r.Context(), recordKey).Bytes()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", mcp.TypeJSON)
		w.Header().Set("Content-Length", strconv.Itoa(len(value)))
		_, _ = w.Write(value)
	})
}

// newRedis is a go-redis client with up to so many connections.
func newRedis(addr string, conns int) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: conns, MaxRetries: -1, DisableIdentity: true, Protocol: 2})
}
