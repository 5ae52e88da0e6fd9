package legacy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// badAnswers are no answers to a form, and what their client is told of them.
var badAnswers = map[string]string{
	`{}`:                                     "action must be accept, decline or cancel",
	`{"action":"secret"}`:                    "action must be",
	`{"error":{"code":-1,"message":"no"}}`:   "action must be",
	`{"action":"accept","content":"secret"}`: "content must be an object",
	`{"action":"accept","content":{"name":{"secret":1}}}`: "the values of content",
	`{"roots":[]}`: "action must be",
	`{"action":"accept","content":{"name":"` + strings.Repeat("secret", 200) + `"}}`: "is too large",
}

// small lets answers have 1 KiB.
var small = shim.QuestionLimits{AnswerBytes: 1 << 10}

// inputResponses spells one answer beside one to a question that nobody asked, which is
// ignored whatever it is (T36).
func inputResponses(key, answer string) string {
	return `,"inputResponses":{"nobody":{"action":7},` + string(jsonrpc.AppendString(nil, key)) + `:` + answer + `}`
}

// TestParkedBadAnswers: what is no answer is -32602 (protocol.md 2.7), of a state that is
// still good, and the server hears nothing of it.
func TestParkedBadAnswers(t *testing.T) {
	p := newParkingWithin(t, small, nil)
	state, questions := askTool.park(t, p.at[0], "")
	for i, at := range p.at {
		for bad, says := range badAnswers {
			m := askTool.send(t, at, inputResponses(questions[0].key, bad)+`,"requestState":"`+state+`"`)
			wantRefusal(t, m, mcp.CodeInvalidParams, says)
			wantRefusal(t, m, mcp.CodeInvalidParams, questions[0].key)
			if strings.Contains(string(m.Raw), "secret") {
				t.Errorf("at %d: the refusal repeats the answer: %s", i, m.Raw)
			}
		}
	}
	wantText(t, askTool.send(t, p.at[1], answering(state, "Ada", questions...)), "accept Ada")
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

// TestUpdateBadAnswers: the same in a task, which goes on waiting (T36, T37). Unknown keys
// are acknowledged, and so is an answer that comes twice.
func TestUpdateBadAnswers(t *testing.T) {
	p := newParkingWithin(t, small, nil)
	begin := askTool
	begin.caps = canTasks
	id, _ := jsonrpc.GetString(begin.send(t, p.at[0], "").Result, "taskId")
	task := asked{caps: canTasks, method: mcp.MethodTasksGet, params: `{"taskId":"` + id + `"}`}
	update := asked{caps: canTasks, method: mcp.MethodTasksUpdate, params: task.params}
	got := task.until(t, p.at[1], "input_required")
	requests, _ := jsonrpc.Get(got, "inputRequests")
	for key := range jsonrpc.Members(requests) {
		for bad, says := range badAnswers {
			wantRefusal(t, update.send(t, p.at[1], inputResponses(key, bad)), mcp.CodeInvalidParams, says)
			task.until(t, p.at[0], "input_required")
		}
		for range 2 {
			if m := update.send(t, p.at[1], inputResponses(key, `{"action":"accept","content":{"name":"Ada"}}`)); m.Error != nil {
				t.Errorf("the answer: %s", m.Raw)
			}
		}
	}
	if got := task.until(t, p.at[1], "completed"); !strings.Contains(string(got), "accept Ada") {
		t.Errorf("the task is %s", got)
	}
	wiretest.Await(t, p.ended, "the end of the call at the server")
	if m := update.send(t, p.at[1], inputResponses("late", `{}`)); m.Error != nil {
		t.Errorf("after the end: %s", m.Raw)
	}
}

// TestReplicasBadAnswers: a legacy client answers by a message that has no answer itself
// (X2). The server is told in its place, and the call goes on.
func TestReplicasBadAnswers(t *testing.T) {
	_, a, b := newAskedPair(t, nil)
	for _, bad := range []string{`{}`, `{"action":"secret"}`, `"x"`, `[]`, `null`, `{"action":"accept","content":{"colour":{"secret":1}}}`} {
		for _, answered := range []*rawClient{a, b} {
			call := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"colour"}}`, "")
			id := call.question("")
			if status, body := answered.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, id, bad)); status != http.StatusAccepted {
				t.Errorf("%s: %d %s", bad, status, body)
			}
			if got := call.end("c"); !strings.Contains(got, "the client's answer is not valid: ") || strings.Contains(got, "secret") {
				t.Errorf("%s: the call ended with %s", bad, got)
			}
			call.close()
		}
	}
}
