package legacy_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// Requests that the askingServer asks about.
var (
	askTool     = asked{caps: canForm, method: mcp.MethodToolsCall, params: `{"name":"ask","arguments":{"n":1}}`}
	askPrompt   = asked{caps: canForm, method: mcp.MethodPromptsGet, params: `{"name":"ask"}`}
	askResource = asked{caps: canForm, method: mcp.MethodResourcesRead, params: `{"uri":"test://ask"}`}
)

// TestParked asks a client without tasks in the middle of each kind of request that
// may ask. It comes back at the same replica, and at the other one.
func TestParked(t *testing.T) {
	p := newParking(t, nil)
	for _, a := range []asked{askTool, askPrompt, askResource} {
		for i, at := range p.at {
			t.Run(fmt.Sprintf("%s at %d", a.method, i), func(t *testing.T) {
				before := p.runs.Load()
				state, questions := a.park(t, p.at[0], "")
				if len(questions) != 1 || questions[0].method != mcp.MethodElicit {
					t.Fatalf("asked %v", questions)
				}
				if i == 1 { // it declares nothing any more
					a.caps = `{}`
				}
				wantText(t, a.send(t, at, answering(state, "Ada", questions...)), "accept Ada")
				if n := p.runs.Load() - before; n != 1 {
					t.Errorf("the server ran it %d times", n)
				}
				wiretest.Await(t, p.ended, "the end of the call at the server")
			})
		}
	}
}

// TestParkedStates tries to come back with what was not given out for the request.
// Nothing of it runs the tool again, and the client that was asked can still answer.
func TestParkedStates(t *testing.T) {
	keys := map[string]string{"alice": "key-of-alice", "bob": "key-of-bob"}
	p := newParking(t, func(c *config.Config) {
		for _, who := range []string{"alice", "bob"} {
			c.Auth.Keys = append(c.Auth.Keys, config.BearerKey(who+":"+config.HashKey(keys[who])))
		}
	})
	alice := askTool
	alice.key = keys["alice"]
	alice.params = `{"name":"ask","arguments":{"a":"é","b":{"y":1,"x":[2]}}}`
	state, questions := alice.park(t, p.at[0], "")

	bob, other, prompt := alice, alice, askPrompt
	bob.key = keys["bob"]
	other.params = `{"name":"ask","arguments":{"n":2}}`
	prompt.key = alice.key
	tampered := []byte(state)
	tampered[len(tampered)-5] ^= 1
	for name, c := range map[string]struct {
		a     asked
		state string
		says  string
	}{
		"another caller":     {bob, state, "was not given out for this request"},
		"another argument":   {other, state, "was not given out for this request"},
		"another method":     {prompt, state, "was not given out for this request"},
		"tampered":           {alice, string(tampered), "was not given out for this request"},
		"cut off":            {alice, state[:len(state)-8], "was not given out for this request"},
		"made up":            {alice, "tg1.k1.AAAA", "was not given out for this request"},
		"no state of ours":   {alice, "whatever", "was not given out for this request"},
		"of a call long ago": {alice, forgeState(t, alice, "alice", "00000000-0000-4000-8000-000000000000", -time.Second), "is over"},
		"a call that ended":  {alice, forgeState(t, alice, "alice", "00000000-0000-4000-8000-000000000000", time.Minute), "is over"},
		"no call at all":     {alice, forgeState(t, alice, "alice", "x", time.Minute), "is over"},
	} {
		for _, at := range p.at {
			t.Run(name, func(t *testing.T) {
				wantRefusal(t, c.a.send(t, at, answering(c.state, "Eve", questions...)), mcp.CodeInvalidParams, c.says)
			})
		}
	}
	anew := alice // what the request means counts, and what is besides may be another
	anew.params = `{"other":1,"arguments": {"b":{"x":[ 2],"y":1},"a":"\u00e9"}, "name":"\u0061sk"}`
	wantText(t, anew.send(t, p.at[1], answering(state, "Ada", questions...)), "accept Ada")
	for _, at := range p.at {
		for _, retry := range []string{answering(state, "Ada", questions...), answering(state, "Eve", questions...), answering(state, "")} {
			wantText(t, alice.send(t, at, retry), "accept Ada") // the first answer counts
		}
	}
	p.wantRuns(t, 1)
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

// TestForeignStates: whatever tokens callers show, the state of one is to another like one that is made
// up, and the next token of its owner is as good as the one that it was given out to.
func TestForeignStates(t *testing.T) {
	for name, passed := range map[string]bool{"jwt": false, "passthrough": true} {
		t.Run(name, func(t *testing.T) {
			var issuer *wiretest.Issuer // of both gateways
			p := newParking(t, func(c *config.Config) {
				if issuer == nil {
					issuer = wiretest.NewIssuer(t, "")
				}
				wiretest.WithTokens(c, issuer)
				if passed {
					c.Auth = config.Auth{}
					c.Auth.Passthrough = config.NewPassthrough()
					c.Upstreams[0].URL = nameIssuer(t, issuer, wiretest.Audience)
				}
			})
			token := func(who string) asked {
				a := askTool
				a.key = issuer.Token(who, map[string]any{"jti": time.Now().String()})
				return a
			}
			state, questions := token("alice").park(t, p.at[0], "")
			tampered := []byte(state)
			tampered[len(tampered)-5] ^= 1
			for _, at := range p.at {
				foreign := token("bob").send(t, at, answering(state, "Eve", questions...))
				unknown := token("bob").send(t, at, answering(string(tampered), "Eve", questions...))
				wantRefusal(t, foreign, mcp.CodeInvalidParams, "was not given out for this request")
				if !bytes.Equal(foreign.Raw, unknown.Raw) {
					t.Errorf("foreign %s\nunknown %s", foreign.Raw, unknown.Raw)
				}
			}
			wantText(t, token("alice").send(t, p.at[1], answering(state, "Ada", questions...)), "accept Ada")
			p.wantRuns(t, 1)
			wiretest.Await(t, p.ended, "the end of the call at the server")
		})
	}
}

// forgeState is a state as whoever has the key could make it.
func forgeState(t *testing.T, a asked, owner, call string, life time.Duration) string {
	t.Helper()
	secret := bytes.Repeat([]byte{7}, 32)
	ring := wiretest.Must(sealed.New(sealed.Key{ID: config.StateKeyID(secret), Secret: secret}))(t)
	name, _ := jsonrpc.GetString([]byte(a.params), mcp.NameParam(a.method))
	arguments, _ := jsonrpc.Get([]byte(a.params), "arguments")
	return ring.Seal(sealed.Binding{
		Owner: owner, Endpoint: "up", Method: a.method,
		Params: sealed.Digest(jsonrpc.AppendString(nil, name), arguments),
	}, call, time.Now().Add(life))
}

// TestParkedAnswers answers several questions in several goes, with keys nobody asked
// for, and with what is no answer.
func TestParkedAnswers(t *testing.T) {
	p := newParking(t, nil)
	all := asked{caps: canAll, method: mcp.MethodToolsCall, params: `{"name":"all"}`}
	state, questions := all.park(t, p.at[0], "")
	waitUntil(t, "all questions, which the server asks beside each other", func() bool {
		if len(questions) < 3 {
			state, questions = all.park(t, p.at[0], answering(state, ""))
		}
		return len(questions) == 3
	})
	for _, bad := range []string{`[]`, `"x"`, `{"k":true}`, `{"k":null}`} {
		retry := `,"inputResponses":` + bad + `,"requestState":"` + state + `"`
		wantRefusal(t, all.send(t, p.at[1], retry), mcp.CodeInvalidParams, "inputResponses")
	}
	// Nothing, and something else than was asked for: asked again, for all of it.
	_, same := all.park(t, p.at[1], answering(state, ""))
	if len(same) != 3 || same[0].key != questions[0].key {
		t.Errorf("asked again: %v", same)
	}
	state, _ = all.park(t, p.at[0], answering(state, "", question{key: "nobody-asked"}))
	// One, then the other two.
	second, rest := all.park(t, p.at[1], answering(state, "Ada", questions[1]))
	if len(rest) != 2 || rest[0].key != questions[0].key || rest[1].key != questions[2].key {
		t.Errorf("left: %v", rest)
	}
	// A question keeps its first answer.
	if _, same := all.park(t, p.at[0], answering(state, "Eve", questions[1])); len(same) != 2 {
		t.Errorf("left: %v", same)
	}
	wantText(t, all.send(t, p.at[0], answering(second, "Ada", rest...)), "accept Ada, m1, file:///r")
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

// Questions after answers come in a new round, with keys of their own (T39).
func TestParkedRounds(t *testing.T) {
	p := newParking(t, nil)
	twice := asked{caps: canForm, method: mcp.MethodToolsCall, params: `{"name":"twice"}`}
	first, one := twice.park(t, p.at[0], "")
	second, two := twice.park(t, p.at[1], answering(first, "Ada", one...))
	if one[0].key == two[0].key {
		t.Errorf("the key %s is used again", one[0].key)
	}
	_, same := twice.park(t, p.at[0], answering(first, "Eve", one...))
	if same[0].key != two[0].key {
		t.Errorf("asked %v", same)
	}
	wantText(t, twice.send(t, p.at[0], answering(second, "Bo", two...)), "accept Ada, accept Bo")
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

// Only what the client declared with this very request is declared to the server
// and asked; a URL comes without the id that only older clients know (protocol.md
// 7.4).
func TestParkedKinds(t *testing.T) {
	p := newParking(t, nil)
	url := asked{caps: canAll, method: mcp.MethodToolsCall, params: `{"name":"url"}`}
	state, questions := url.park(t, p.at[0], "")
	if params := string(questions[0].params); strings.Contains(params, "elicitationId") || !strings.Contains(params, "https://example.com/x") {
		t.Errorf("asked %s", params)
	}
	wantText(t, url.send(t, p.at[1], answering(state, "", questions...)), "accept")
	wiretest.Await(t, p.ended, "the end of the call at the server")
	for caps, tool := range map[string]string{canForm: "url", `{}`: "ask", `{"elicitation":{"url":{}}}`: "ask"} {
		a := asked{caps: caps, method: mcp.MethodToolsCall, params: `{"name":"` + tool + `"}`}
		if m := a.send(t, p.at[0], ""); m.Error == nil { // the tool's own, of the server's SDK
			t.Errorf("%s with %s: %s", tool, caps, m.Raw)
		}
		if how := wiretest.Await(t, p.ended, "the end of the call at the server"); !strings.HasPrefix(how, "error: ") {
			t.Errorf("%s with %s ended with %q", tool, caps, how)
		}
	}
	roots := asked{caps: `{"roots":{}}`, method: mcp.MethodToolsCall, params: `{"name":"all"}`}
	state, questions = roots.park(t, p.at[0], "")
	if len(questions) != 1 || questions[0].method != mcp.MethodRootsList {
		t.Errorf("asked %v", questions)
	}
	if m := roots.send(t, p.at[1], answering(state, "", questions...)); m.Error == nil {
		t.Errorf("without sampling and elicitation: %s", m.Raw)
	}
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

// TestNotParked: without keys that all replicas have, a client that takes no tasks is
// not asked, and the server is told so from the start; one that takes tasks is asked
// in its task.
func TestNotParked(t *testing.T) {
	p := newParking(t, func(c *config.Config) { c.StateKeys = nil })
	if m := askTool.send(t, p.at[0], ""); m.Error == nil || !strings.Contains(m.Error.Message, "does not support elicitation") {
		t.Errorf("got %s", m.Raw)
	}
	wiretest.Await(t, p.ended, "the end of the call at the server")
	wantRefusal(t, askTool.send(t, p.at[0], answering("tg1.k1.AAAA", "Ada")), mcp.CodeInvalidParams, "was not given out")
	if n := strings.Count(p.log.String(), "state_keys"); n != 2 {
		t.Errorf("%d warnings of two replicas: %s", n, p.log)
	}
	declared := askTool
	declared.caps = canTasks
	task, update := declared.makeTask(t, p.at[0], "")
	key, _ := task.awaitQuestion(t, p.at[1])
	update.send(t, p.at[1], inputResponses(key, `{"action":"accept","content":{"name":"Ada"}}`))
	wantTexts(t, task.awaitStatus(t, p.at[1], "completed"), "accept Ada")
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

// A client that never comes back: the server is told that its user cancelled, and
// the call ends.
func TestParkedForever(t *testing.T) {
	p := newParking(t, func(c *config.Config) { c.Upstreams[0].Defaults.InputTimeout = 300 * time.Millisecond })
	state, questions := askTool.park(t, p.at[0], "")
	wantNext(t, p.ended, "the end of the call at the server", "cancel <nil>")
	// Who comes back soon after that still learns how the call ended.
	m := askTool.send(t, p.at[1], answering(state, "late", questions...))
	wantText(t, m, "cancel")
	p.wantRuns(t, 1)
}

// A client that comes back, and goes away while the call goes on, cancels it, as
// with any request (2.6).
func TestParkedClientLeaves(t *testing.T) {
	p := newParking(t, nil)
	slow := asked{caps: canForm, method: mcp.MethodToolsCall, params: `{"name":"slow"}`}
	state, questions := slow.park(t, p.at[0], "")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		r := slow.request(ctx, p.at[1], answering(state, "Ada", questions...))
		if resp, err := http.DefaultClient.Do(r); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-p.answered
	leave()
	wantNext(t, p.ended, "the end of the call at the server", "cancelled")
	<-left
}

// TestParkedThenTask: the questions come first, and the answered call becomes a task
// (T21). Nothing of the round goes along.
func TestParkedThenTask(t *testing.T) {
	grace := time.Hour // where the call begins, which therefore waits for the question
	p := newParking(t, func(c *config.Config) {
		c.Upstreams[0].Defaults.EarlyInput, c.Upstreams[0].Defaults.Grace = config.EarlyMRTR, grace
		grace = 10 * time.Millisecond
	})
	slow := asked{caps: canTasks, method: mcp.MethodToolsCall, params: `{"name":"slow"}`}
	state, questions := slow.park(t, p.at[0], "")
	task, _ := slow.makeTask(t, p.at[1], answering(state, "Ada", questions...))
	close(p.hold)
	got := task.awaitStatus(t, p.at[0], "completed")
	if !strings.Contains(string(got), "accept Ada") || strings.Contains(string(got), "requestState") || strings.Contains(string(got), "inputRequests") {
		t.Errorf("the task is %s", got)
	}
}

// makeTask makes the request, which becomes a task, and returns what reads it, and what answers it.
func (a asked) makeTask(t *testing.T, url, retry string) (get, update asked) {
	t.Helper()
	m := a.send(t, url, retry)
	id, _ := jsonrpc.GetString(m.Result, "taskId")
	if id == "" {
		t.Fatalf("no task: %s", m.Raw)
	}
	get = asked{caps: a.caps, method: mcp.MethodTasksGet, params: `{"taskId":"` + id + `"}`, key: a.key}
	update = get
	update.method = mcp.MethodTasksUpdate
	return get, update
}

// awaitStatus reads a task until it is in this status.
func (a asked) awaitStatus(t *testing.T, url, status string) json.RawMessage {
	t.Helper()
	var m jsonrpc.Message
	waitUntil(t, "the task is "+status, func() bool {
		m = a.send(t, url, "")
		s, _ := jsonrpc.GetString(m.Result, "status")
		return s == status
	})
	return m.Result
}

// behindMark begins the state of a gateway behind another one.
const behindMark = "up."

// TestParkedBehindAnotherGateway asks through two gateways in a row. The inner one gives
// out the state, which the outer one must not take for its own, whether it has another
// key by the same name or, as replicas of one deployment might, the very same.
func TestParkedBehindAnotherGateway(t *testing.T) {
	const notGiven = "was not given out for this request"
	for name, secret := range map[string]byte{"other key": 9, "same key": 7} {
		t.Run(name, func(t *testing.T) {
			unmarked := notGiven
			if secret == 7 { // it opens, and leads to a call that this store does not have
				unmarked = "is over"
			}
			p := newParking(t, nil)
			c := newConfig(nil)
			c.Upstreams[0].UpstreamTasks = config.UpstreamTasksNever // else the inner one asks in a task
			c.StateKeys = []config.StateKey{config.StateKey(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{secret}, 32)))}
			p.start(t, "outer", p.at[0], c)
			outer := p.at[len(p.at)-1]
			for _, a := range []asked{askTool, askPrompt, askResource} {
				state, questions := a.park(t, outer, "")
				if !strings.HasPrefix(state, behindMark+"tg1.") {
					t.Errorf("the state is %q", state)
				}
				for bad, says := range map[string]string{
					strings.TrimPrefix(state, behindMark): unmarked, state + "x": notGiven, "tg1.k1.AAAA": notGiven,
				} {
					wantRefusal(t, a.send(t, outer, answering(bad, "Eve", questions...)), mcp.CodeInvalidParams, says)
				}
				wantText(t, a.send(t, outer, answering(state, "Ada", questions...)), "accept Ada")
				wiretest.Await(t, p.ended, "the end of the call at the server")
			}
			p.wantRuns(t, 3)
		})
	}
}

// TestParkedByTaskBehind asks through two gateways in a row, of which the inner one makes a task
// of the call. What that asks, the outer one asks with a state of its own.
func TestParkedByTaskBehind(t *testing.T) {
	p := newParking(t, nil)
	c := newConfig(nil)
	c.StateKeys = []config.StateKey{config.StateKey(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32)))}
	p.start(t, "outer", p.at[0], c)
	outer := p.at[len(p.at)-1]
	state, questions := askTool.park(t, outer, "")
	if !strings.HasPrefix(state, "tg1.") {
		t.Errorf("the state is %q", state)
	}
	wantText(t, askTool.send(t, outer, answering(state, "Ada", questions...)), "accept Ada")
	p.wantRuns(t, 1)
}

// TestTaskResultAsks: a modern client without tasks, which was told of its task in words,
// is asked what that asks by the answer of the tool that waits for it (design.md 0.10),
// and comes back at either replica.
func TestTaskResultAsks(t *testing.T) {
	p := newParking(t, func(c *config.Config) {
		c.Upstreams[0].WithoutTasks, c.Upstreams[0].Defaults.Tasks = config.WithoutTasksHandle, config.TasksRequired
	})
	late := asked{caps: canForm, method: mcp.MethodToolsCall, params: `{"name":"late","arguments":{}}`}
	id := idOfTask(t, string(late.send(t, p.at[0], "").Result))
	close(p.hold)
	result := asked{caps: canForm, method: mcp.MethodToolsCall, params: fmt.Sprintf(`{"name":"task_result","arguments":{"taskId":%q}}`, id)}
	state, questions := result.park(t, p.at[1], "")
	if len(questions) != 1 || questions[0].method != mcp.MethodElicit {
		t.Fatalf("asked %v", questions)
	}
	again, same := result.park(t, p.at[0], "") // the first answer of the tool was lost
	if len(same) != 1 || same[0].key != questions[0].key {
		t.Errorf("asked again: %v, before %v", same, questions)
	}
	other := result
	other.params = strings.Replace(result.params, id[:8], "00000000", 1)
	if m := other.send(t, p.at[0], answering(state, "Eve", questions...)); m.Error == nil || m.Error.Code != mcp.CodeInvalidParams {
		t.Errorf("with the state of another task: %+v", m)
	}
	wantText(t, result.send(t, p.at[0], answering(again, "Ada", questions...)), "accept Ada")
	wantText(t, result.send(t, p.at[1], answering(state, "Bob", questions...)), "accept Ada")
	p.wantRuns(t, 1)
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

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

// TestParkedBadAnswers: what is no answer is -32602 (protocol.md 2.7), of a state that is still good, and of a task, which
// goes on waiting (T36, T37). The server hears nothing of it. A task acknowledges unknown keys, and an answer that
// comes twice.
func TestParkedBadAnswers(t *testing.T) {
	p := newParking(t, nil, small)
	state, questions := askTool.park(t, p.at[0], "")
	begin := askTool
	begin.caps = canTasks
	task, update := begin.makeTask(t, p.at[0], "")
	key, _ := task.awaitQuestion(t, p.at[1])
	for bad, says := range badAnswers {
		for i, at := range p.at {
			m := askTool.send(t, at, inputResponses(questions[0].key, bad)+`,"requestState":"`+state+`"`)
			wantRefusal(t, m, mcp.CodeInvalidParams, says)
			wantRefusal(t, m, mcp.CodeInvalidParams, questions[0].key)
			if strings.Contains(string(m.Raw), "secret") {
				t.Errorf("at %d: the refusal repeats the answer: %s", i, m.Raw)
			}
		}
		wantRefusal(t, update.send(t, p.at[1], inputResponses(key, bad)), mcp.CodeInvalidParams, says)
		task.awaitStatus(t, p.at[0], "input_required")
	}
	wantText(t, askTool.send(t, p.at[1], answering(state, "Ada", questions...)), "accept Ada")
	wiretest.Await(t, p.ended, "the end of the call at the server")
	for range 2 {
		if m := update.send(t, p.at[1], inputResponses(key, `{"action":"accept","content":{"name":"Ada"}}`)); m.Error != nil {
			t.Errorf("the answer: %s", m.Raw)
		}
	}
	wantTexts(t, task.awaitStatus(t, p.at[1], "completed"), "accept Ada")
	wiretest.Await(t, p.ended, "the end of the call of the task")
	if m := update.send(t, p.at[1], inputResponses("late", `{}`)); m.Error != nil {
		t.Errorf("after the end: %s", m.Raw)
	}
}

// TestReplicasBadAnswers: a legacy client answers by a message that has no answer itself
// (X2). The server is told in its place, and the call goes on.
func TestReplicasBadAnswers(t *testing.T) {
	stack, a, b := newPair(t, nil, canBeAsked)
	withQuestions(stack.server)
	for _, bad := range []string{`{}`, `{"action":"secret"}`, `"x"`, `[]`, `null`, `{"action":"accept","content":{"colour":{"secret":1}}}`} {
		for _, answered := range []*rawClient{a, b} {
			call := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"colour"}}`, "")
			id := call.question("")
			answered.wantPost(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, id, bad), http.StatusAccepted)
			if got := call.end("c"); !strings.Contains(got, "the client's answer is not valid: ") || strings.Contains(got, "secret") {
				t.Errorf("%s: the call ended with %s", bad, got)
			}
			call.close()
		}
	}
}
