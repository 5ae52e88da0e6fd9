package legacy_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// TestAudit: there is a record of who created, read, answered and cancelled which task, in both
// eras, of who tried one that is not theirs, and of who was not let in; and nothing else is in it, whatever fails.
func TestAudit(t *testing.T) {
	eachHouse(t, auditOf)
	t.Run("passthrough", func(t *testing.T) {
		auditOf(t, newHouseOf(t, func(h *house, c *config.Config) {
			h.withPassthrough(c, func(i *wiretest.Issuer, subject, server string) string {
				return i.Token(subject, map[string]any{"aud": server, "client_id": "editor"})
			})
		}))
	})
}

func auditOf(t *testing.T, h *house) {
	withQuestions(h.peer)
	alice, bob := h.caller(wiretest.AliceKey), h.caller(wiretest.BobKey)
	alice.asks = true
	id := alice.task()
	alice.awaitStatus(id, "working") // no result is read
	h.events.proceed <- struct{}{}
	for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
		bob.modern(method, `"taskId":"`+id+`","inputResponses":{"q":{}},`)
	}
	session := alice.initialize()
	session.legacy(mcp.MethodTasksResult, `"taskId":"`+id+`"`) // waits for the end
	session.session = ""
	alice.modern("tasks/update", `"taskId":"`+id+`","inputResponses":{"nobody asked":{"action":"decline"}},`)
	alice.modern("tasks/get", `"taskId":"`+id+`",`)
	alice.modern("tools/call", `"name":"echo",`)
	next := alice.task()
	alice.modern("tasks/cancel", `"taskId":"`+next+`",`)
	wiretest.Await(t, h.events.cancelled, "the cancellation upstream")
	third := field(alice.modern("tools/call", `"name":"colour",`), "taskId")
	alice.awaitStatus(third, "input_required")
	key := openQuestion(t, alice.modern("tasks/get", `"taskId":"`+third+`",`))
	answer := `"taskId":"` + third + `","inputResponses":{"` + key + `":{"action":"accept","content":{"colour":"secret answer"}}},`
	bob.modern("tasks/update", answer)
	alice.modern("tasks/update", answer)
	alice.modern("tasks/update", answer) // comes twice
	h.caller("nobody's").modern("tasks/get", `"taskId":"`+id+`",`)

	var got []string
	text := h.records.String()
	for line := range strings.Lines(text) {
		get := func(name string) string {
			m := regexp.MustCompile(name + `=("[^"]*"|[^ \n]*)`).FindStringSubmatch(line)
			if m == nil {
				return ""
			}
			return strings.Trim(m[1], `"`)
		}
		who := map[string]string{"alice": "alice", "bob": "bob"}[get("principal")]
		if who == "" {
			who = get(" name")
		}
		task := map[string]string{id: "first", next: "second", third: "third"}[get("task")]
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", get("msg"), who, task, get("tool"))))
	}
	want := []string{
		"task created: alice first wait",
		"unknown task: bob first", "unknown task: bob first", "unknown task: bob first",
		"result read: alice first", "result read: alice first",
		"task created: alice second wait", "task cancelled: alice second", "task created: alice third colour",
		"unknown task: bob third", "question answered: alice third", "sign-in refused:",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s\n%s", diff, text)
	}
	if h.issuer != nil && strings.Count(text, " client=editor") < 10 {
		t.Errorf("the records do not say which client it was:\n%s", text)
	}
	for _, secret := range append([]string{"secret answer", "nobody's"}, h.secrets...) {
		if !(secret == "alice" || secret == "bob") && strings.Contains(text, secret) {
			t.Errorf("%q is in the records:\n%s", secret, text)
		}
	}
}

// openQuestion is the key of the question that a task has.
func openQuestion(t *testing.T, r reply) string {
	t.Helper()
	questions, _ := jsonrpc.Get([]byte(r.body), "result", "inputRequests")
	for key := range jsonrpc.Members(questions) {
		return key
	}
	t.Fatalf("no question: %v", r)
	return ""
}
