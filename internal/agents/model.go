package agents

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Call is a call of a tool that the model wants. Tool is the name that the MCP server
// gives it; the model finds the name that the agent made of it.
type Call struct {
	Tool string
	Args map[string]any
}

// Turn is one request of an agent to the model, in the words that the APIs share.
type Turn struct {
	Tools   []string // the names of the tools that the agent offers
	Results []Result // of all calls of tools so far
	At      time.Time
}

// Result is the result of a call of a tool as the agent shows it to the model.
type Result struct {
	Text   string
	Images int
}

// Script decides what the model says: it calls the tool, or says done if there is none.
type Script func(Turn) *Call

// Model is a language model that follows a script. It is an http.Handler that speaks
// Anthropic Messages, OpenAI Responses and chat completions, and Gemini generateContent.
// It answers whatever offers no tool of the MCP server (a title, a summary) with a word.
type Model struct {
	Script Script
	Word   func(Result) string // what the model says of the last result, when it calls no tool

	mu    sync.Mutex
	turns []Turn
	names []string // of the MCP server's tools, when they were last offered
}

// Turns are the requests so far that offered tools of the MCP server.
func (m *Model) Turns() []Turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.turns)
}

// done is what the model says of anything else.
const done = "All done."

// api is one of the APIs: how a request is read, and how an answer is written.
type api struct {
	suffix string // of the path
	read   func(body []byte) Turn
	write  func(e *events, c *Call)
}

var apis = []api{
	{"/messages", readAnthropic, writeAnthropic},
	{"/responses", readResponses, writeResponses},
	{"/chat/completions", readCompletions, writeCompletions},
	{":streamGenerateContent", readGemini, writeGemini},
	{":generateContent", readGemini, writeGemini},
}

// ServeHTTP implements http.Handler.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the agent has gone away
	}
	for _, a := range apis {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, a.suffix) {
			turn, e := a.read(body), newEvents(w, r, body)
			c := m.answer(turn)
			if n := len(turn.Results); n > 0 {
				e.word = m.Word(turn.Results[n-1])
			}
			a.write(e, c)
			return
		}
	}
	if strings.HasSuffix(r.URL.Path, "/count_tokens") || strings.HasSuffix(r.URL.Path, ":countTokens") {
		writeJSON(w, map[string]any{"input_tokens": 100, "totalTokens": 100})
		return
	}
	http.NotFound(w, r)
}

// prefix begins the names of the MCP server's tools, and of no others: the agents put
// the server's name in front of that.
const prefix = "try_"

// answer asks the script, and puts the name of the tool as the agent has it. A tool that is
// not offered any more is called all the same: the conversation shows its name.
func (m *Model) answer(t Turn) *Call {
	m.mu.Lock()
	ours := slices.DeleteFunc(slices.Clone(t.Tools), func(name string) bool {
		return !strings.Contains(name, prefix) && !strings.HasSuffix(name, "task_result")
	})
	if len(ours) > 0 {
		m.names = ours
	}
	if len(ours) == 0 && len(t.Results) == 0 {
		m.mu.Unlock()
		return nil
	}
	names := m.names
	t.At = time.Now()
	m.turns = append(m.turns, t)
	m.mu.Unlock()
	c := m.Script(t)
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(name, c.Tool) })
	if i < 0 {
		return nil
	}
	return &Call{Tool: names[i], Args: c.Args}
}

// events writes an answer as the agent wants it: as a stream of events, or whole.
type events struct {
	w      http.ResponseWriter
	stream bool
	word   string // what the model says when it calls no tool
}

func newEvents(w http.ResponseWriter, r *http.Request, body []byte) *events {
	var asked struct{ Stream bool }
	_ = json.Unmarshal(body, &asked)
	e := &events{w: w, word: done, stream: asked.Stream || strings.HasSuffix(r.URL.Path, ":streamGenerateContent")}
	if e.stream {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	return e
}

// send writes one event of a stream.
func (e *events) send(name string, data any) {
	if name != "" {
		_, _ = io.WriteString(e.w, "event: "+name+"\n")
	}
	_, _ = io.WriteString(e.w, "data: "+encode(data)+"\n\n")
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, encode(v))
}

// encode is the JSON of what can always be encoded.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// calls counts the calls of all models: their ids are distinct.
var calls atomic.Int64

func callID() string { return fmt.Sprintf("call_%d", calls.Add(1)) }
