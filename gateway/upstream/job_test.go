package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/job"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// jobRules are those of the tools start, status, result and cancel.
func jobRules(t *testing.T, edit ...func(*job.Rules)) *job.Rules {
	t.Helper()
	place := func(text string) job.Place {
		p, err := job.ParsePlace(text)
		must(t, err)
		return p
	}
	call := func(tool string) job.Call {
		arguments, err := job.ParseTemplate(json.RawMessage(`{"job":"{id}","key":"{arguments.key}"}`))
		must(t, err)
		return job.Call{Tool: tool, Arguments: arguments}
	}
	lost, err := job.ParsePattern("/no such job/")
	must(t, err)
	result, cancel := call("result"), call("cancel")
	r := &job.Rules{
		ID: place("$.id"), Status: call("status"), Value: place("$.state"), Message: place("$.detail"), Progress: place("$.percent"), RetryAfter: place("$.wait"),
		Running: []job.Value{`"text queued"`, `"text running"`}, Done: []job.Value{`"text done"`}, Failed: []job.Value{`"text failed"`}, Cancelled: []job.Value{`"text stopped"`},
		Lost: lost, Result: &result, Cancel: &cancel, Interval: time.Second, MaxInterval: 4 * time.Second,
	}
	for _, e := range edit {
		e(r)
	}
	return r
}

// jobCallOf is a call of start.
func jobCallOf(t *testing.T, edit ...func(*job.Rules)) shim.Request {
	r := shimtest.Tool("start", "k")
	r.Job, r.Session.Key = jobRules(t, edit...), "a"
	return r
}

// structured answers with structured content.
func structured(content string) fake.Behaviour {
	return fake.Result(`{"resultType":"complete","content":[{"type":"text","text":"see the structure"}],"structuredContent":` + content + `}`)
}

func toolError(text string) fake.Behaviour {
	return fake.Result(fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":%q}],"isError":true}`, text))
}

// inTurn answers each call with the next behaviour, and with the last one from then on.
func inTurn(all ...fake.Behaviour) fake.Behaviour {
	var mu sync.Mutex
	n := 0
	return func(x *fake.Exchange) {
		mu.Lock()
		b := all[min(n, len(all)-1)]
		n++
		mu.Unlock()
		b(x)
	}
}

// jobServer gives a server the four tools.
func jobServer(s *fake.Server, status ...fake.Behaviour) {
	s.Tool("start", structured(`{"id":9007199254740993}`))
	s.Tool("status", inTurn(status...))
	s.Tool("result", fake.Text("the export"))
	s.Tool("cancel", fake.Text("cancelled"))
}

// called lists the tools that were called, with the arguments of those after the first.
func called(s *fake.Server) (tools []string) {
	for _, x := range s.Seen("tools/call") {
		name, _ := jsonrpc.GetString(x.Params, "name")
		if args, _ := jsonrpc.Get(x.Params, "arguments"); name != "start" && string(args) != `{"job":9007199254740993,"key":"k"}` {
			name += string(args)
		}
		tools = append(tools, name)
	}
	return tools
}

var jobModes = map[string]fake.Mode{"legacy": fake.Stateful, "stateless": fake.Stateless, "modern": fake.Modern}

// A job is started once, and asked for until it is done: its result is the reply, and its id is in the checkpoint
// before it is asked for.
func TestJob(t *testing.T) {
	for name, mode := range jobModes {
		bubbleOf(t, name, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			jobServer(s, structured(`{"state":"queued"}`), structured(`{"state":"running","detail":"row 7","percent":40}`), structured(`{"state":"running","detail":"row 7","percent":40}`),
				structured(`{"state":"running","percent":30}`), structured(`{"state":"done"}`))
			sink, begin := &shimtest.Sink{}, time.Now()
			sink.OnCheckpoint = func(cp json.RawMessage) error {
				if strings.Contains(string(cp), "9007199254740993") && slices.Contains(called(s), "status") {
					t.Error("the job was asked for before its id was recorded")
				}
				return nil
			}
			reply, err := h.Call(t.Context(), jobCallOf(t), sink)
			if got := textIn(t, reply, err); got != "the export" {
				t.Errorf("the result is %s", reply.Result)
			}
			if got := called(s); !slices.Equal(got, []string{"start", "status", "status", "status", "status", "status", "result"}) {
				t.Errorf("called %q", got)
			}
			if took := time.Since(begin).Round(100 * time.Millisecond); took != 9100*time.Millisecond { // 1 + 1 + 1.5 + 2.25 + 3.375
				t.Errorf("that took %v", took)
			}
			heard, _ := sink.Heard()
			if len(heard) != 2 || heard[0].Message != "row 7" || heard[0].Progress != 40 || heard[1].Progress != 30 {
				t.Errorf("progress %+v", heard)
			}
			if cp := string(sink.Latest()); !strings.Contains(cp, `"job":{"id":9007199254740993,"arguments":{"key":"k"}}`) || !h.Resumable(json.RawMessage(cp)) {
				t.Errorf("the checkpoint is %s", cp)
			}
		})
	}
}

// Another replica goes on with the next question, in the session of the first one, and never starts the job again.
func TestJobIsAdopted(t *testing.T) {
	for name, mode := range jobModes {
		bubbleOf(t, name, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			jobServer(s, structured(`{"state":"running"}`))
			sink := &shimtest.Sink{}
			ctx, leave := context.WithCancelCause(t.Context())
			time.AfterFunc(20*time.Second, func() { leave(shim.ErrDetached) })
			if _, err := h.Call(ctx, jobCallOf(t), sink); !errors.Is(err, shim.ErrDetached) {
				t.Fatalf("the first replica ended with %v", err)
			}
			before := s.Seen("tools/call")
			s.Tool("status", structured(`{"state":"done"}`))
			other := beside(t, h)
			reply, err := other.Resume(t.Context(), jobCallOf(t), sink.Latest(), &shimtest.Sink{})
			if got := textIn(t, reply, err); got != "the export" {
				t.Errorf("the result is %s", reply.Result)
			}
			after := s.Seen("tools/call")[len(before):]
			if len(after) != 2 || after[0].Header.Get("Mcp-Session-Id") != before[0].Header.Get("Mcp-Session-Id") {
				t.Errorf("the other replica made %d calls, in another session", len(after))
			}
			if got := called(s); slices.Contains(got[1:], "start") || slices.Contains(got, "cancel") {
				t.Errorf("called %q", got)
			}
			if _, err := other.Resume(t.Context(), shimtest.Tool("start", "k"), sink.Latest(), sink); !errors.Is(err, shim.ErrNotResumable) {
				t.Errorf("without the rules of the job: %v", err)
			}
		})
	}
}

// beside is another client of the same server.
func beside(t *testing.T, h *ServerClient) *ServerClient {
	t.Helper()
	other, err := New(Config{URL: "http://fake/mcp"})
	must(t, err)
	baseOf(other).DialContext = baseOf(h).DialContext
	return other
}

// A question that is not answered is asked again, however the server fails, and the owner hears of it.
func TestJobIsAskedAgain(t *testing.T) {
	for name, failing := range map[string]fake.Behaviour{
		"an error of the tool": toolError("out of order"),
		"-32603":               fake.RPCError(200, -32603, "out of order", ""),
		"-32602":               fake.RPCError(200, -32602, "out of order", ""),
		"429":                  fake.Status(429, "", "", "Retry-After", "30"),
		"500":                  fake.Status(500, "", ""),
		"no connection":        func(x *fake.Exchange) { x.Cut() },
		"silence":              func(x *fake.Exchange) { x.Hang() },
		"no MCP":               fake.HTML(),
		"done, in an error":    fake.Result(`{"resultType":"complete","content":[],"isError":true,"structuredContent":{"state":"done"}}`),
	} {
		bubbleOf(t, name, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			jobServer(s, failing, failing, failing, failing, failing, structured(`{"state":"done"}`))
			s.Tool("result", inTurn(fake.RPCError(200, -32603, "out of order", ""), fake.Status(503, "", ""), fake.Text("the export")))
			sink, begin := &shimtest.Sink{}, time.Now()
			reply, err := h.Call(t.Context(), jobCallOf(t), sink)
			if got := textIn(t, reply, err); got != "the export" {
				t.Errorf("the result is %s", reply.Result)
			}
			if heard, _ := sink.Heard(); len(heard) == 0 || !strings.Contains(heard[0].Message, "does not say how the job stands") {
				t.Errorf("the owner heard %+v", heard)
			}
			if took := time.Since(begin); name == "429" && took < 150*time.Second {
				t.Errorf("asked again before Retry-After: the job took %v", took)
			}
		})
	}
}

// How a job can end, other than with its result, and what servers do that do not behave.
func TestJobEnds(t *testing.T) {
	state := func(s string) []fake.Behaviour { return []fake.Behaviour{structured(s)} }
	for name, c := range map[string]struct {
		start  fake.Behaviour
		status []fake.Behaviour
		result fake.Behaviour
		most   int64  // the largest answer
		want   string // in the error, or in the result that is one
		cancel bool   // the server is told to cancel
	}{
		"failed":                     {status: state(`{"state":"failed","detail":"disk full"}`), want: "disk full"},
		"failed, in an error":        {status: []fake.Behaviour{fake.Result(`{"resultType":"complete","content":[],"isError":true,"structuredContent":{"state":"failed"}}`)}, want: `"failed"`},
		"cancelled by the server":    {status: state(`{"state":"stopped","detail":"by an admin"}`), want: "the server cancelled the call: by an admin"},
		"lost":                       {status: []fake.Behaviour{toolError("no such job")}, want: "no longer knows the job 9007199254740993; the work may have been done"},
		"lost, as a JSON-RPC error":  {status: []fake.Behaviour{fake.RPCError(200, -32602, "no such job", "")}, want: "no longer knows the job"},
		"lost, as a text":            {status: []fake.Behaviour{fake.Text("no such job")}, want: "no longer knows the job"},
		"an error at once":           {start: toolError("no money"), want: "no money"},
		"a JSON-RPC error at once":   {start: fake.RPCError(200, -32602, "no money", ""), want: "no money"},
		"no id":                      {start: fake.Text("all went well"), want: "names no job; the work may have been begun: all went well"},
		"an empty id":                {start: structured(`{"id":""}`), want: "names no job"},
		"an id of 1 MB":              {start: structured(`{"id":"` + strings.Repeat("x", 1<<20) + `"}`), want: "more than 4096 bytes"},
		"an id of another type":      {start: structured(`{"id":{"a":1}}`), want: "neither a text nor a number"},
		"a status that is too large": {status: []fake.Behaviour{structured(`{"state":"` + strings.Repeat("x", 1<<20) + `"}`)}, most: 1 << 16, want: "larger than 65536 bytes", cancel: true},
		"a result that is too large": {result: fake.Text(strings.Repeat("x", 1<<20)), most: 1 << 16, want: "larger than 65536 bytes", cancel: true},
		"a result that is an error":  {result: toolError("the export has expired"), want: "the export has expired"},
	} {
		bubbleOf(t, name, fake.Modern, Config{MaxResult: c.most}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			jobServer(s, append(c.status, structured(`{"state":"done"}`))...)
			if c.start != nil {
				s.Tool("start", c.start)
			}
			if c.result != nil {
				s.Tool("result", c.result)
			}
			reply, err := h.Call(t.Context(), jobCallOf(t), &shimtest.Sink{})
			got := string(reply.Result)
			if up, ok := errors.AsType[*shim.UpstreamError](err); ok {
				got = up.TellClient()
			} else if reply.Error != nil {
				got = reply.Error.Message
			} else if !reply.IsError || !strings.Contains(got, `"isError":true`) {
				t.Errorf("%s, %v is no error", reply.Result, err)
			}
			if !strings.Contains(got, c.want) || len(got) > 500 {
				t.Errorf("it ended with %.500q, want %q", got, c.want)
			}
			if told := slices.Contains(called(s), "cancel"); told != c.cancel {
				t.Errorf("called %q", called(s))
			}
		})
	}
}

// A status that nobody has named counts as running, with one warning, and a job may go backwards; without a result tool the
// last answer is the result.
func TestJobWithStrangeStatuses(t *testing.T) {
	var log bytes.Buffer
	bubble(t, fake.Stateful, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		jobServer(s, structured(`{"state":"running"}`), structured(`{"state":"resting"}`), structured(`{"state":7}`), fake.Text("…"), structured(`{"state":"queued","wait":60}`), structured(`{"state":"done","url":"x"}`))
		begin := time.Now()
		reply, err := h.Call(t.Context(), jobCallOf(t, func(r *job.Rules) { r.Result = nil }), &shimtest.Sink{})
		if err != nil || reply.IsError || !strings.Contains(string(reply.Result), `{"state":"done","url":"x"}`) {
			t.Errorf("the result is %s, %v", reply.Result, err)
		}
		if took := time.Since(begin); took < 69*time.Second {
			t.Errorf("the server was asked before it wanted to be: all took %v", took)
		}
	})
	if n := strings.Count(log.String(), "in no list of its tool's job"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

// The end of its caller cancels the job, also where that comes before the id; the timeout says so if the server refuses.
func TestJobIsCancelled(t *testing.T) {
	late := func(x *fake.Exchange) {
		<-time.After(time.Second)
		structured(`{"id":9007199254740993}`)(x)
	}
	timeout := &shim.UpstreamError{Kind: shim.KindTimeout, Message: "the call ran into its time limit"}
	for name, c := range map[string]struct {
		start, cancel fake.Behaviour
		edit          func(*job.Rules)
		after         time.Duration
		want          string
	}{
		"while it runs":          {after: 10 * time.Second, want: "the call ran into its time limit"},
		"while it is started":    {start: late, after: time.Second / 2, want: "the call ran into its time limit"},
		"refused":                {cancel: toolError("too late"), after: 10 * time.Second, want: "the job 9007199254740993 may go on at the server: it refused to cancel it: too late"},
		"refused in another way": {cancel: fake.RPCError(200, -32603, "not today", ""), after: 10 * time.Second, want: "it refused to cancel it: not today"},
		"without a tool":         {edit: func(r *job.Rules) { r.Cancel = nil }, after: 10 * time.Second, want: "has no tool that cancels it"},
	} {
		for mode := range jobModes {
			bubbleOf(t, name+"/"+mode, jobModes[mode], Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				jobServer(s, structured(`{"state":"running"}`))
				if c.start != nil {
					s.Tool("start", c.start)
				}
				if c.cancel != nil {
					s.Tool("cancel", c.cancel)
				}
				r := jobCallOf(t)
				if c.edit != nil {
					c.edit(r.Job)
				}
				ctx, end := context.WithCancelCause(t.Context())
				time.AfterFunc(c.after, func() { end(timeout) })
				_, err := h.Call(ctx, r, &shimtest.Sink{})
				up, ok := errors.AsType[*shim.UpstreamError](err)
				if !ok || !errors.Is(err, timeout) || !strings.Contains(up.Message, c.want) {
					t.Errorf("it ended with %v, want %q", err, c.want)
				}
				got := called(s)
				if n := len(slices.DeleteFunc(slices.Clone(got), func(tool string) bool { return tool != "cancel" })); n != 1 && r.Job.Cancel != nil {
					t.Errorf("the job was cancelled %d times: %q", n, got)
				}
			})
		}
	}
}

// placed is a sink that counts places.
type placed struct {
	shimtest.Sink
	held, taken atomic.Int32
}

func (p *placed) LeavePlace() { p.held.Store(0) }

func (p *placed) TakePlace(context.Context) error {
	p.held.Store(1)
	p.taken.Add(1)
	return nil
}

// A job has a place among the calls in flight only for each of its requests.
func TestJobLeavesItsPlace(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		p := &placed{}
		p.held.Store(1)
		jobServer(s, structured(`{"state":"running"}`), structured(`{"state":"done"}`))
		time.AfterFunc(time.Second/2, func() {
			if p.held.Load() != 0 {
				t.Error("a job that nobody asks for has a place")
			}
		})
		_, err := h.Call(t.Context(), jobCallOf(t), p)
		if check(t, err); p.taken.Load() != 3 {
			t.Errorf("%d places were taken", p.taken.Load())
		}
	})
}

// The session of an anonymous call lasts until its job is over, and not longer.
func TestJobKeepsItsSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		jobServer(s, structured(`{"state":"running"}`), structured(`{"state":"done"}`))
		r := jobCallOf(t)
		r.Session.Key = ""
		_, err := h.Call(t.Context(), r, &shimtest.Sink{})
		check(t, err)
		ids := map[string]bool{}
		for _, x := range s.Seen("tools/call") {
			ids[x.Header.Get("Mcp-Session-Id")] = true
		}
		synctest.Wait()
		if opened, deleted, _ := s.Sessions(); len(ids) != 1 || opened != 1 || deleted != 1 {
			t.Errorf("%d sessions were used, %d opened, %d deleted", len(ids), opened, deleted)
		}
	})
}
