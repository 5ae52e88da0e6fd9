package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/pool"
)

// A large text of a result.
var largeText = strings.Repeat("mine ", 30<<10)

// endings are how the answers of a server come to their ends, by the names of its tools.
var endings = map[string]struct {
	kind, text string
	announced  int  // the length in the head; 0 for none
	waits      bool // the rest never comes
	fails      bool
}{
	"small":             {kind: mcp.TypeJSON, text: `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[]}}`},
	"large":             {kind: mcp.TypeJSON, text: `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[{"type":"text","text":"TEXT"}]}}`},
	"large event":       {kind: mcp.TypeSSE, text: "data: " + `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[{"type":"text","text":"TEXT"}]}}` + "\n\n"},
	"event behind it":   {kind: mcp.TypeSSE, text: "data: " + `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[]}}` + "\n\n: more\n\ndata: {}\n\n"},
	"array":             {kind: mcp.TypeJSON, text: `[{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"TEXT"}},{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[]}}]`},
	"large error":       {kind: mcp.TypeJSON, text: `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"no","data":"TEXT"}}`, fails: true},
	"no JSON":           {kind: mcp.TypeJSON, text: "TEXT", fails: true},
	"another's answer":  {kind: mcp.TypeJSON, text: `{"jsonrpc":"2.0","id":"other","result":{"a":"TEXT"}}`, fails: true},
	"too large":         {kind: mcp.TypeJSON, text: `{"a":"TEXTTEXTTEXT"}`, fails: true},
	"too large event":   {kind: mcp.TypeSSE, text: "data: TEXTTEXTTEXT\n\n", fails: true},
	"cut":               {kind: mcp.TypeJSON, text: `{"a":"TEXT`, announced: 200 << 10, fails: true},
	"cut event":         {kind: mcp.TypeSSE, text: "data: {\"a\":\"TEXT", fails: true},
	"left in the text":  {kind: mcp.TypeJSON, text: `{"a":"TEXT`, announced: 200 << 10, waits: true},
	"left in the event": {kind: mcp.TypeSSE, text: "data: {\"a\":\"TEXT", waits: true},
}

// ends is a server whose answers end in all these ways.
func ends(half chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return
		}
		w.Header().Set("Content-Type", mcp.TypeJSON)
		switch q.Method {
		case "server/discover":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}}`, q.ID)
			return
		case "tools/list":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","tools":[]}}`, q.ID)
			return
		}
		e := endings[q.Params.Name]
		w.Header().Set("Content-Type", e.kind)
		if e.announced > 0 {
			w.Header().Set("Content-Length", fmt.Sprint(e.announced))
		}
		_, _ = io.WriteString(w, strings.NewReplacer("ID", string(q.ID), "TEXT", largeText).Replace(e.text))
		if e.waits {
			w.(http.Flusher).Flush()
			half <- struct{}{}
			<-r.Context().Done()
		}
	}
}

// TestPoolsGetBack: however a call ends, what was got from a pool is put back.
func TestPoolsGetBack(t *testing.T) {
	half := make(chan struct{})
	up := httptest.NewServer(ends(half))
	t.Cleanup(up.Close)
	for _, tasks := range []config.TaskMode{config.TasksNever, config.TasksAuto} {
		r := runServer(t, up.URL, func(c *config.Config) {
			c.Upstreams[0].Defaults.Tasks, c.Upstreams[0].MaxResult = tasks, 300<<10
		})
		for name, e := range endings {
			for era := range eras {
				t.Run(fmt.Sprint(tasks, ", ", era, ", ", name), func(t *testing.T) {
					conn := r.hear(era, name)
					if e.waits {
						<-half
						if must(t, conn.Close()); era == "legacy" { // whose client may come back: the server goes, too
							up.CloseClientConnections()
						}
					} else {
						said := answerOn(t, conn)
						if failed := strings.Contains(said, `"error":`) || strings.Contains(said, `"isError":true`); failed != e.fails {
							t.Errorf("it said %.300s", said)
						}
						if strings.HasPrefix(name, "large") && !e.fails && !strings.Contains(said, largeText) {
							t.Errorf("the text is another: %.300s", said)
						}
					}
					r.until("all is put back", func() bool { return len(pool.Lent()) == 0 })
				})
			}
		}
	}
}

// answerOn reads the answer on a connection.
func answerOn(t *testing.T, conn net.Conn) string {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(text)
}
