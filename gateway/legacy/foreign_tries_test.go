package legacy_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// TestForeignTries makes 2,000 tries at two replicas with good tokens that are not the owner's: of another client, for
// another audience, of another issuer, of another subject. Nothing is revealed, nothing is done, and each answer is
// that for an id of nothing.
func TestForeignTries(t *testing.T) {
	h := newHouses(t, func(h *house, c *config.Config) {
		h.withPassthrough(c, jwtOf)
		c.StateKeys, c.ResumeAfter = []config.StateKey{parkKey}, time.Second // an answer that takes longer has another form
	})
	withQuestions(h.peer)
	owner, strangers := h.strangers()
	world := newForeignWorld(t, h, owner)
	tries, own := world.tries(), map[string]string{} // sessions of the strangers
	for name, token := range strangers {
		own[name] = h.caller(token).initialize().session
		raw := newRawClient(t, h.url).as(token)
		raw.session = own[name]
		raw.takeStream() // so that it gets no other one in place of what it asks for
	}
	// What tells of the owner's tasks.
	revealing := regexp.MustCompile(`"taskId":"(` + strings.Join([]string{world.done, world.running, world.asking}, "|") + `)|"content"|wait [{]`)
	n, tried := 0, map[[2]string]int{} // by stranger and try
	for round := 0; n < 2000; round++ {
		for name, token := range strangers {
			for _, try := range tries {
				for _, id := range try.of {
					by := func() *caller { return &caller{h: h, key: token, session: own[name], there: n%4 > 1} }
					foreign, unknown := try.do(by(), id), try.do(by(), try.unknown)
					for again := 0; again < 20 && foreign.ops != unknown.ops; again++ { // the runs of the owner write at times, and streams look at their sessions
						foreign.ops, unknown.ops = try.do(by(), id).ops, try.do(by(), try.unknown).ops
					}
					if foreign.status == http.StatusTooManyRequests || unknown.status == http.StatusTooManyRequests {
						continue // too many tokens of nobody's have come from this address, whatever the id is
					}
					if try.late {
						foreign.ops, unknown.ops = "", "" // what is still written of the stream
					}
					wantAlike(t, name+": "+try.name, foreign, unknown)
					if revealing.MatchString(foreign.body) {
						t.Fatalf("%s: %s: %v", name, try.name, foreign)
					}
					n += 2
					tried[[2]string{name, try.name}]++
				}
			}
		}
	}
	for name := range strangers {
		for _, try := range tries {
			if tried[[2]string{name, try.name}] == 0 {
				t.Errorf("%s: nobody has tried %s", name, try.name)
			}
		}
	}
	world.wantUnchanged()
}

// strangers are the owner of everything, and the tokens of those who are somebody else.
func (h *house) strangers() (owner *caller, strangers map[string]string) {
	claims := func(client, audience string) map[string]any {
		return map[string]any{"client_id": client, "aud": audience}
	}
	owner = h.caller(h.issuer.Token("alice", claims("editor", h.server)))
	owner.asks = true
	elsewhere := wiretest.NewIssuer(h.t, "")
	return owner, map[string]string{
		"another client":           h.issuer.Token("alice", claims("other", h.server)),
		"no client":                h.issuer.Token("alice", map[string]any{"aud": h.server}),
		"another client by azp":    h.issuer.Token("alice", map[string]any{"azp": "other", "aud": h.server}),
		"another audience":         h.issuer.Token("alice", claims("editor", "https://other.example/mcp")),
		"another issuer":           elsewhere.Token("alice", claims("editor", h.server)),
		"another subject":          h.issuer.Token("bob", claims("editor", h.server)),
		"opaque, another client":   h.issuer.Opaque("alice", claims("other", h.server)),
		"opaque, another audience": h.issuer.Opaque("alice", claims("editor", "https://other.example/mcp")),
		"nobody":                   "",
	}
}

// foreignWorld is what the owner has.
type foreignWorld struct {
	t                     *testing.T
	h                     *house
	owner, client         *caller // without a session and with one
	done, running, asking string  // tasks
	key                   string  // of the question that one asks
	state, stateKey       string  // of a call that waits for its answer, and the question
	stream                string  // the last event of a call in the session
	cursor                func(id string) string
}

func newForeignWorld(t *testing.T, h *house, owner *caller) *foreignWorld {
	t.Helper()
	w := &foreignWorld{t: t, h: h, owner: owner}
	w.done = owner.task()
	h.events.proceed <- struct{}{}
	owner.awaitStatus(w.done, "completed")
	w.running = owner.task()
	w.asking = field(owner.modern(mcp.MethodToolsCall, `"name":"colour",`), "taskId")
	owner.awaitStatus(w.asking, "input_required")
	w.key = openQuestion(t, owner.modern(mcp.MethodTasksGet, `"taskId":"`+w.asking+`",`))
	parked := owner.parks("", "")
	w.state, w.stateKey = field(parked, "requestState"), openQuestion(t, parked)
	w.client = h.caller(owner.key).initialize()
	raw := newRawClient(t, h.url).as(owner.key)
	raw.session = w.client.session
	call := openSSE(t, raw, http.MethodPost, waitCall, "")
	w.stream, _, _ = call.event()
	call.close()
	if w.state == "" || w.stream == "" {
		t.Fatalf("the state is %q, and the event %q", w.state, w.stream)
	}
	w.cursor = owner.cursors(w.done)
	return w
}

// parks calls a tool that asks, as a client that takes no tasks: at first, or with a state and the answer to a question.
func (c *caller) parks(state, key string) reply {
	c.h.t.Helper()
	meta := strings.Replace(wiretest.Macros.Replace("$META"), `"io.modelcontextprotocol/clientCapabilities":{}`, `"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}`, 1)
	params := `"name":"colour",`
	if state != "" {
		params += `"requestState":"` + state + `","inputResponses":{"` + key + `":{"action":"accept","content":{"colour":"red"}}},`
	}
	c.session = ""
	return c.send(mcp.MethodToolsCall, params, meta)
}

// try is one thing that a stranger may do with the id of something.
type try struct {
	name    string
	of      []string // ids of what is foreign
	unknown string   // of nothing
	do      func(c *caller, id string) reply
	late    bool // something is written when it is over
}

func (w *foreignWorld) tries() []try {
	tries := sessionTries(w.stream, w.asking+"/"+w.key, w.client.session)
	tries = append(tries, []try{
		{name: "state", of: []string{w.state}, unknown: w.state[:len(w.state)-8] + "AAAAAAAA", do: func(c *caller, id string) reply {
			return c.parks(id, w.stateKey)
		}},
		{name: "answer in its own session", of: []string{w.done, w.running, w.asking}, unknown: strange, do: func(c *caller, id string) reply {
			return c.do("POST", answerBody(id+"/"+w.key, "red"), nil)
		}},
		{name: "event in its own session", of: []string{w.stream}, unknown: strange + ".1", late: true, do: func(c *caller, id string) reply {
			return c.do("GET", "", http.Header{mcp.HeaderLastEventID: {id}})
		}},
	}...)
	return append(tries, taskTries(w.key, w.cursor, w.done, w.running, w.asking)...)
}

// sessionTries are what a stranger may do with the ids of sessions, of which this is an event, and a question.
func sessionTries(event, question string, of ...string) (tries []try) {
	add := func(name string, do func(c *caller) reply) {
		tries = append(tries, try{name: name, of: of, unknown: strange, do: func(c *caller, id string) reply {
			c.session = id
			return do(c)
		}})
	}
	stream := func(name string, header http.Header) {
		add(name, func(c *caller) reply { return c.do("GET", "", header) })
	}
	post := func(name, body string) {
		add(name, func(c *caller) reply { return c.do("POST", body, nil) })
	}
	add("request", func(c *caller) reply { return c.legacy(mcp.MethodToolsCall, `"name":"echo"`) })
	add("ping", func(c *caller) reply { return c.legacy("ping", "") })
	stream("stream", nil)
	stream("stream from an event", http.Header{mcp.HeaderLastEventID: {"get.1"}})
	stream("stream of a call", http.Header{mcp.HeaderLastEventID: {event}})
	post("answer", answerBody(question, "red"))
	post("cancellation", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w1"}}`)
	add("end", func(c *caller) reply { return c.do("DELETE", "", nil) })
	add("tasks/list", func(c *caller) reply { return c.legacy(mcp.MethodTasksList, "") })
	return tries
}

// taskTries are what a stranger with a session may do with the ids of tasks, which ask this.
func taskTries(question string, cursor func(id string) string, of ...string) (tries []try) {
	add := func(name string, do func(c *caller, id string) reply) {
		tries = append(tries, try{name: name, of: of, unknown: strange, do: do})
	}
	modern := func(method string, params func(id string) string) {
		add(method, func(c *caller, id string) reply {
			c.session = ""
			return c.modern(method, params(id))
		})
	}
	modern(mcp.MethodListen, func(id string) string { return `"notifications":{"taskIds":["` + id + `"]},` })
	add("cursor", func(c *caller, id string) reply { return c.legacy(mcp.MethodTasksList, `"cursor":"`+cursor(id)+`"`) })
	for _, method := range []string{mcp.MethodTasksGet, mcp.MethodTasksCancel, mcp.MethodTasksUpdate} {
		modern(method, func(id string) string {
			return `"taskId":"` + id + `","inputResponses":{"` + question + `":{"action":"accept","content":{"colour":"red"}}},`
		})
	}
	for _, method := range []string{mcp.MethodTasksGet, mcp.MethodTasksResult, mcp.MethodTasksCancel} {
		add("legacy "+method, func(c *caller, id string) reply { return c.legacy(method, `"taskId":"`+id+`"`) })
	}
	return tries
}

// cursors makes cursors of pages that begin after a task, as if that was made when one of the caller's was.
func (c *caller) cursors(task string) func(id string) string {
	c.h.t.Helper()
	created := wiretest.Must(time.Parse(time.RFC3339, field(c.modern(mcp.MethodTasksGet, `"taskId":"`+task+`",`), "createdAt")))(c.h.t)
	return func(id string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(fmt.Sprint(created.UnixMilli(), " ", id)))
	}
}

// wantUnchanged fails unless everything is as the owner has left it.
func (w *foreignWorld) wantUnchanged() {
	w.t.Helper()
	w.owner.awaitStatus(w.done, "completed")
	w.owner.awaitStatus(w.running, "working")
	w.owner.awaitStatus(w.asking, "input_required")
	w.client.legacy(mcp.MethodToolsCall, `"name":"echo"`).want(w.t, http.StatusOK)
	if w.key != openQuestion(w.t, w.owner.modern(mcp.MethodTasksGet, `"taskId":"`+w.asking+`",`)) {
		w.t.Error("the question has changed")
	}
	for _, record := range strings.Split(w.h.records.String(), "\n") {
		if strings.Contains(record, "question answered") || strings.Contains(record, "task cancelled") {
			w.t.Errorf("somebody has done something: %s", record)
		}
	}
	select {
	case <-w.h.events.cancelled:
		w.t.Error("a call was cancelled at the server")
	default:
	}
	w.h.listen()
	if r := w.owner.parks(w.state, w.stateKey); !strings.Contains(r.body, "accept red") {
		w.t.Errorf("the call that waits for its answer: %v", r)
	}
	for range 2 { // the task and the call of the session end
		w.h.events.proceed <- struct{}{}
	}
	w.owner.awaitStatus(w.running, "completed")
	w.owner.modern(mcp.MethodTasksCancel, `"taskId":"`+w.asking+`",`).want(w.t, http.StatusOK, `"result"`)
}
