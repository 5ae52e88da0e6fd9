package legacy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// marker is in everything that is asked and answered, and in whatever a server says
// about it afterwards.
const marker = "marker-7411"

// wordsOfRefusal is what a server says with an HTTP status of 400 and above: the log has it, since it says the cure.
const wordsOfRefusal = "words of a refusal"

const (
	markedForm   = `{"mode":"form","message":"` + marker + `","requestedSchema":{"type":"object","properties":{"` + marker + `":{"type":"string"}}}}`
	markedAnswer = `{"action":"accept","content":{"` + marker + `":"` + marker + `"}}`
)

// quoting are what a server does once it has its answer. Each may quote it.
var quoting = map[string]fake.Behaviour{
	"result":     ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[{"type":"text","text":"` + marker + `"}]}}`),
	"tool_error": ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","isError":true,"content":[{"type":"text","text":"` + marker + `"}]}}`),
	"rpc_error":  ends(`{"jsonrpc":"2.0","id":{id},"error":{"code":-32000,"message":"` + marker + `","data":{"` + marker + `":"` + marker + `"}}}`),
	"reserved":   ends(`{"jsonrpc":"2.0","id":{id},"error":{"code":-32050,"message":"` + marker + `","data":"` + marker + `"}}`),
	"garbage":    ends(`{"jsonrpc":"2.0","id":{id},"result":{"` + marker + `","` + marker),
	"no_object":  ends(`{"jsonrpc":"2.0","id":{id},"result":"` + marker + `"}`),
	"odd_type":   ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"odd","content":[],"` + marker + `":1}}`),
	"two_names":  ends(`{"jsonrpc":"2.0","id":{id},"` + marker + `":1,"` + marker + `":2,"result":{}}`),
	"cut":        func(x *fake.Exchange) { x.Cut() },
	"undeclared": func(x *fake.Exchange) {
		x.Ask(`"`+marker+strings.Trim(string(x.ID), `"`)+`"`, mcp.MethodCreateMessage, `{"messages":[],"maxTokens":1,"systemPrompt":"`+marker+`"}`)
		ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[]}}`)(x)
	},
	"too_large": func(x *fake.Exchange) {
		x.Ask(`"large `+strings.Trim(string(x.ID), `"`)+`"`, mcp.MethodElicit, `{"message":"`+strings.Repeat(marker, 200)+`","requestedSchema":{"type":"object","properties":{}}}`)
		ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[]}}`)(x)
	},
}

// quotingRetry are those of a server that is called again with the answers.
var quotingRetry = map[string]fake.Behaviour{
	"refused":    fake.RPCError(http.StatusBadRequest, -32602, wordsOfRefusal, `"`+marker+`"`),
	"forbidden":  fake.RPCError(http.StatusForbidden, -32000, wordsOfRefusal, `"`+marker+`"`),
	"overloaded": fake.RPCError(http.StatusServiceUnavailable, -32000, wordsOfRefusal, `"`+marker+`"`),
	"page":       fake.Status(http.StatusInternalServerError, "text/html", wordsOfRefusal),
	"undeclared": ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"input_required","inputRequests":{"` + marker +
		`":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1,"systemPrompt":"` + marker + `"}}},"requestState":"` + marker + `"}}`),
	"too_large": ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"input_required","inputRequests":{"` + marker +
		`":{"method":"elicitation/create","params":{"message":"` + strings.Repeat(marker, 200) + `","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"` + marker + `"}}`),
}

func ends(event string) fake.Behaviour { return fake.Stream(event) }

// private is a gateway in front of a fake server that asks, all of whose log, spans and
// metrics are kept.
type private struct {
	*parking
	tools  []string
	refuse atomic.Bool // the server refuses the answers that are posted to it
	asked  atomic.Int64
}

func newPrivate(t *testing.T, mode fake.Mode, change func(*config.Config)) *private {
	t.Helper()
	p := &private{parking: &parking{limits: shim.QuestionLimits{Bytes: 1 << 10, AnswerBytes: 1 << 10}, log: &safeBuffer{}, spans: tracetest.NewInMemoryExporter()}}
	s := fake.New(t, mode)
	for name, end := range quoting {
		if mode == fake.Modern && quotingRetry[name] == nil {
			p.tool(s, name, p.round(end))
		} else if mode != fake.Modern {
			p.tool(s, name, p.question(end))
		}
	}
	if mode == fake.Modern {
		for name, end := range quotingRetry {
			p.tool(s, name, p.round(end))
		}
	}
	s.OnAnswer(func(x *fake.Exchange) bool {
		if p.refuse.Load() {
			x.ID = []byte("null")
			fake.RPCError(http.StatusBadRequest, -32602, wordsOfRefusal, `"`+marker+`"`)(x)
		}
		return !p.refuse.Load()
	})
	p.start(t, "a", s.URL, newConfig(change))
	return p
}

func (p *private) tool(s *fake.Server, name string, b fake.Behaviour) {
	p.tools = append(p.tools, name)
	s.Tool(name, b)
}

// question asks on the stream of the call, before it ends so.
func (p *private) question(end fake.Behaviour) fake.Behaviour {
	return func(x *fake.Exchange) {
		if x.Token() != "" {
			x.Event(x.Progress(1, marker))
		}
		x.Ask(fmt.Sprintf(`"%s-%d"`, marker, p.asked.Add(1)), mcp.MethodElicit, markedForm)
		end(x)
	}
}

// round asks with its result, before it ends so when it is called again.
func (p *private) round(end fake.Behaviour) fake.Behaviour {
	return func(x *fake.Exchange) {
		if _, again := jsonrpc.Get(x.Params, "inputResponses"); again {
			end(x)
			return
		}
		p.asked.Add(1)
		ends(`{"jsonrpc":"2.0","id":{id},"result":{"resultType":"input_required","inputRequests":{"` + marker +
			`":{"method":"elicitation/create","params":` + markedForm + `}},"requestState":"` + marker + `"}}`)(x)
	}
}

// wantNothingTold fails the test if the marker, or more, is in the log, which has all records that OpenTelemetry
// gets, in a span or in a metric.
func (p *private) wantNothingTold(t *testing.T, more ...string) {
	t.Helper()
	all := p.log.String()
	for _, span := range p.spans.GetSpans() {
		all += fmt.Sprintln(span.Name, span.Attributes, span.Events, span.Status, span.Links)
	}
	for _, r := range p.measured {
		all += r.Text()
	}
	for _, text := range append(more, marker) {
		if i := strings.Index(all, text); i >= 0 {
			t.Fatalf("told of it: %s", all[max(0, i-400):min(len(all), i+100)])
		}
	}
}

// answers are what clients answer with, and which of them are none.
var answers = []struct {
	answer string
	bad    bool
}{
	{`{"action":"` + marker + `"}`, true},
	{`{"action":"accept","content":{"name":"` + strings.Repeat(marker, 200) + `"}}`, true},
	{`{"` + marker + `":{}}`, true},
	{markedAnswer, false},
}

// TestPrivate: arguments, keys, results, messages of a server, and what is asked and answered
// are in no log record, whatever its level, and in no span and no metric, whichever way a client is
// asked and however the call ends.
func TestPrivate(t *testing.T) {
	for era, mode := range map[string]fake.Mode{"legacy": fake.Stateful, "modern": fake.Modern} {
		for client, play := range map[string]func(*testing.T, *private){
			"modern client": privateParked, "task": privateTasks, "legacy client": privateLegacy,
		} {
			t.Run(era+" server, "+client, func(t *testing.T) {
				t.Parallel()
				play(t, newPrivate(t, mode, func(c *config.Config) {
					if client == "task" {
						c.Upstreams[0].Defaults.Tasks = config.TasksAlways
					}
				}))
			})
		}
	}
}

// privateParked asks by results.
func privateParked(t *testing.T, p *private) {
	var states []string
	for i, tool := range append(p.tools, "cut") {
		p.refuse.Store(i == len(p.tools))
		a := asked{caps: canForm, method: mcp.MethodToolsCall, params: marked(tool), key: marker}
		state, questions := a.park(t, p.at[0], "")
		if strings.HasPrefix(state, "tg1.") { // of the gateway
			states = append(states, state)
		}
		for _, c := range answers {
			if c.bad && i > 0 { // how it ends has nothing to do with those
				continue
			}
			bad := state + "x"
			if i%2 == 0 && !c.bad {
				bad = "tg1." + marker
			}
			answer := func(state string) {
				a.send(t, p.at[0], inputResponses(questions[0].key, c.answer)+`,"requestState":"`+state+`"`)
			}
			answer(bad)
			if answer(state); strings.HasPrefix(state, "tg1.") && !c.bad {
				answer(state) // once more
			}
		}
	}
	p.wantNothingTold(t, states...)
	p.wantSeen(t, len(p.tools)+1)
}

// privateTasks asks in tasks.
func privateTasks(t *testing.T, p *private) {
	for i, tool := range append(p.tools, "cut") {
		p.refuse.Store(i == len(p.tools))
		a := asked{caps: canTasks, method: mcp.MethodToolsCall, params: marked(tool), key: marker}
		task, update := a.makeTask(t, p.at[0], "")
		key, _ := task.awaitQuestion(t, p.at[0])
		for _, c := range answers {
			if c.bad && i > 0 {
				continue
			}
			if m := update.send(t, p.at[0], inputResponses(key, c.answer)); (m.Error != nil) != c.bad {
				t.Errorf("%s: %s", c.answer, m.Raw)
			}
		}
		waitUntil(t, "the end of the task", func() bool {
			status, _ := jsonrpc.GetString(task.send(t, p.at[0], "").Result, "status")
			return status == "completed" || status == "failed"
		})
	}
	p.wantNothingTold(t)
	p.wantSeen(t, len(p.tools)+1)
	for _, event := range []string{"made", "sent", "asked", "answered", "ended"} {
		if !strings.Contains(p.log.String(), `"event":"taskgate.task.`+event+`"`) {
			t.Errorf("nothing was told of tasks that were %s", event)
		}
	}
}

// marked are the params of a call with the marker in its arguments.
func marked(tool string) string {
	return `{"name":"` + tool + `","arguments":{"` + marker + `":"` + marker + `"}}`
}

// privateLegacy asks by requests.
func privateLegacy(t *testing.T, p *private) {
	c := newRawClient(t, p.at[0]).initialize(canBeAsked)
	bodies := []string{`"error":{"code":-1,"message":"` + marker + `","data":"` + marker + `"}`}
	for _, a := range answers {
		bodies = append(bodies, `"result":`+a.answer)
	}
	asked := 0
	for _, tool := range append(p.tools, "cut") {
		for i, body := range bodies {
			good := i == len(bodies)-1
			if !good && tool != p.tools[0] { // how it ends has nothing to do with those
				continue
			}
			p.refuse.Store(asked == len(p.tools)+len(bodies)-1)
			asked++
			call := openSSE(t, c, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":`+marked(tool)+`}`, "")
			id := call.question("")
			for range 2 {
				c.post(`{"jsonrpc":"2.0","id":"` + id + `",` + body + `}`)
			}
			call.end("c")
			call.close()
		}
	}
	p.wantNothingTold(t)
	p.wantSeen(t, asked)
	linked := slices.ContainsFunc(p.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name == "answer" && len(s.Links) == 1 })
	if !linked {
		t.Error("no answer is linked to the trace of its call")
	}
}

// wantSeen fails a test that has not seen what it is about.
func (p *private) wantSeen(t *testing.T, asked int) {
	t.Helper()
	if n := int(p.asked.Load()); n != asked {
		t.Errorf("asked %d times, want %d", n, asked)
	}
	if n := len(p.spans.GetSpans()); n < 2*asked {
		t.Errorf("only %d spans", n)
	}
	if !strings.Contains(p.measured[0].Text(), "mcp.client.operation.duration") {
		t.Error("nothing was measured")
	}
	if !strings.Contains(p.log.String(), `"level":"DEBUG"`) && !strings.Contains(p.log.String(), `"level":"WARN"`) {
		t.Errorf("nothing was logged: %s", p.log)
	}
}
