package legacy_test

import (
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// try is one thing that a stranger may do with the id of something.
type try struct {
	name string
	of   []string // ids of what is foreign
	do   func(c *caller, id string) reply
}

// TestForeignTries makes 2,000 tries with good tokens that are not the owner's: of another client, for another
// audience, of another issuer, of another subject. Nothing is revealed, nothing is done, and each answer is that
// for an id of nothing.
func TestForeignTries(t *testing.T) {
	h := newPassthroughHouse(t)
	withQuestions(h.peer)
	claims := func(client, audience string) map[string]any {
		return map[string]any{"client_id": client, "aud": audience}
	}
	owner := h.caller(h.issuer.Token("alice", claims("editor", h.server)))
	owner.asks = true
	elsewhere := wiretest.NewIssuer(t, "")
	strangers := map[string]string{
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

	done := owner.task()
	h.events.proceed <- struct{}{}
	owner.status(done, "completed")
	running := owner.task()
	asking := field(owner.modern(mcp.MethodToolsCall, `"name":"colour",`), "taskId")
	owner.status(asking, "input_required")
	key := openQuestion(t, owner.modern(mcp.MethodTasksGet, `"taskId":"`+asking+`",`))
	client := h.caller(owner.key).initialize()

	tasks, sessions := []string{done, running, asking}, []string{client.session}
	tries := []try{
		{"request", sessions, func(c *caller, id string) reply {
			c.session = id
			return c.legacy(mcp.MethodToolsCall, `"name":"echo"`)
		}},
		{"ping", sessions, func(c *caller, id string) reply { c.session = id; return c.legacy("ping", "") }},
		{"stream", sessions, func(c *caller, id string) reply { c.session = id; return c.do("GET", "", nil) }},
		{"resumption", sessions, func(c *caller, id string) reply {
			c.session = id
			return c.do("GET", "", http.Header{mcp.HeaderLastEventID: {"1"}})
		}},
		{"answer", sessions, func(c *caller, id string) reply {
			c.session = id
			return c.do("POST", `{"jsonrpc":"2.0","id":"`+asking+`","result":{}}`, nil)
		}},
		{"cancellation", sessions, func(c *caller, id string) reply {
			c.session = id
			return c.do("POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, nil)
		}},
		{"end", sessions, func(c *caller, id string) reply { c.session = id; return c.do("DELETE", "", nil) }},
	}
	for _, method := range []string{mcp.MethodTasksGet, mcp.MethodTasksCancel, mcp.MethodTasksUpdate} {
		tries = append(tries, try{method, tasks, func(c *caller, id string) reply {
			return c.modern(method, `"taskId":"`+id+`","inputResponses":{"`+key+`":{"action":"accept","content":{"colour":"red"}}},`)
		}})
	}
	tries = append(tries, try{mcp.MethodListen, tasks, func(c *caller, id string) reply {
		return c.modern(mcp.MethodListen, `"notifications":{"taskIds":["`+id+`"]},`)
	}})

	n := 0
	for round := 0; n < 2000; round++ {
		for name, token := range strangers {
			for _, try := range tries {
				for _, id := range try.of {
					foreign, unknown := try.do(h.caller(token), id), try.do(h.caller(token), strange)
					if foreign.status == http.StatusTooManyRequests || unknown.status == http.StatusTooManyRequests {
						continue // too many tokens of nobody's have come from this address, whatever the id is
					}
					alike(t, name+": "+try.name, foreign, unknown)
					if strings.Contains(foreign.body, `"result":{"taskId"`) {
						t.Fatalf("%s: %s: %v", name, try.name, foreign)
					}
					n += 2
				}
			}
		}
	}

	owner.status(done, "completed")
	owner.status(running, "working")
	owner.status(asking, "input_required")
	if r := client.legacy(mcp.MethodToolsCall, `"name":"echo"`); r.status != http.StatusOK {
		t.Errorf("the session of the owner: %v", r)
	}
	if key != openQuestion(t, owner.modern(mcp.MethodTasksGet, `"taskId":"`+asking+`",`)) {
		t.Error("the question has changed")
	}
	for _, record := range strings.Split(h.records.String(), "\n") {
		if strings.Contains(record, "question answered") || strings.Contains(record, "task cancelled") {
			t.Errorf("somebody has done something: %s", record)
		}
	}
}
