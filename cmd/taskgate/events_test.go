package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
)

// talker is a server of 2026-07-28 that says progress before it answers: all of it in one write to "together", and to
// "apart" each event once the client has the one before.
type talker struct {
	*httptest.Server
	has chan struct{} // the client has got an event
}

const talked = 5 // how many times it says progress

func newTalker(t *testing.T) *talker {
	s := &talker{has: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *talker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name string
			Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		return
	}
	result := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete",`, q.ID)
	switch q.Method {
	case "server/discover":
		result += `"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}}`
	case "tools/list":
		result += `"tools":[]}}`
	default:
		result += `"content":[]}}`
	}
	if q.Method != "tools/call" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result) // a gateway that has gone is no concern of this server
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	all := ""
	for i := range talked {
		event := fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":%d}}\n\n", q.Params.Meta.ProgressToken, i+1)
		if q.Params.Name == "together" {
			all += event
			continue
		}
		_, _ = io.WriteString(w, event+": nothing else for now\n\n")
		w.(http.Flusher).Flush()
		<-s.has
	}
	_, _ = io.WriteString(w, all+"data: "+result+"\n\n")
}

// eras have the clients that hear: one of 2026, and one in a session.
var eras = map[string]func(r *running) (params, headers string){
	"modern": func(*running) (params, headers string) {
		return `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`,
			"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: %s\r\n"
	},
	"legacy": func(r *running) (params, headers string) {
		session, _ := r.beginLegacy("/mcp")
		return "", mcp.HeaderSession + ": " + session + "\r\nX-Tool: %s\r\n"
	},
}

// hear calls a tool that says progress.
func (r *running) hear(era, tool string) net.Conn {
	r.t.Helper()
	meta, headers := eras[era](r)
	conn, err := net.Dial("tcp", r.s.listener.Addr().String())
	must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","_meta":{"progressToken":"p"` + meta + `}}}`
	_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		headers+"Content-Length: %d\r\n\r\n%s", tool, len(body), body)
	must(r.t, err)
	return conn
}

// chunksOf reads the head of a chunked response, and its chunks.
func chunksOf(t *testing.T, in *bufio.Reader) (chunks []string) {
	t.Helper()
	for line := "\n"; line != "\r\n"; {
		var err error
		line, err = in.ReadString('\n')
		must(t, err)
	}
	for {
		line, err := in.ReadString('\n')
		must(t, err)
		size, err := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
		must(t, err)
		chunk := make([]byte, size+2)
		_, err = io.ReadFull(in, chunk)
		must(t, err)
		if size == 0 {
			return chunks
		}
		chunks = append(chunks, string(chunk[:size]))
	}
}

// TestEventsGoOutTogether: events that come together go on together.
func TestEventsGoOutTogether(t *testing.T) {
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			r := runServer(t, newTalker(t).URL, func(c *config.Config) { c.Upstreams[0].Defaults.Tasks = config.TasksNever })
			writes := chunksOf(t, bufio.NewReader(r.hear(era, "together")))
			if all := strings.Join(writes, ""); strings.Count(all, "notifications/progress") != talked || !strings.Contains(all, `"result"`) {
				t.Errorf("heard %s", all)
			}
			if len(writes) > 3 {
				t.Errorf("the gateway wrote %d times:\n%q", len(writes), writes)
			}
		})
	}
}

// TestEventsAreNotHeldBack: while the server is silent, the client has all that it has said, also on a stream that it
// could resume.
func TestEventsAreNotHeldBack(t *testing.T) {
	for era := range eras {
		for _, resumeAfter := range []time.Duration{time.Nanosecond, time.Hour} {
			t.Run(fmt.Sprint(era, " ", resumeAfter), func(t *testing.T) {
				up := newTalker(t)
				r := runServer(t, up.URL, func(c *config.Config) { c.ResumeAfter = resumeAfter })
				lines := bufio.NewScanner(r.hear(era, "apart"))
				events, answered := 0, false
				for !answered && lines.Scan() {
					if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "" {
						if answered = strings.Contains(data, `"result"`); !answered {
							events++
							up.has <- struct{}{}
						}
					}
				}
				if events != talked || !answered {
					t.Errorf("%d events, answered: %v, %v", events, answered, lines.Err())
				}
			})
		}
	}
}
