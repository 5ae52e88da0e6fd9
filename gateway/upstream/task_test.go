package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// baseTasks is what a server declares that has tasks of its own.
const baseTasks = `{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`

// askedCall is a call of the tool "t" whose client can be asked.
func askedCall(key string) shim.Request {
	r := in(key, `{"elicitation":{},"sampling":{}}`)
	r.Within, r.Rounds = time.Hour, true
	return r
}

func textIn(t *testing.T, reply shim.Reply, err error) string {
	t.Helper()
	if err != nil || reply.Error != nil {
		t.Fatalf("%v, %v", reply.Error, err)
	}
	if strings.Contains(string(reply.Result), "related-task") {
		t.Errorf("the server's task shows in %s", reply.Result)
	}
	var all []string
	content, _ := jsonrpc.Get(reply.Result, "content")
	for b := range jsonrpc.Elements(content) {
		text, _ := jsonrpc.GetString(b, "text")
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// seenParams are the params of what was sent with a method.
func seenParams(s *fake.Server, method string) string {
	var all []string
	for _, x := range s.Seen(method) {
		all = append(all, string(x.Params))
	}
	return strings.Join(all, " ")
}

// Which calls become tasks of the server: those of tools that need one, and, where the
// operator says so, all that can.
func TestServerTaskChosen(t *testing.T) {
	for i, c := range []struct {
		use      TaskUse
		caps     string
		support  string
		want     string
		listings int
	}{
		{TasksAuto, baseTasks, "required", "result of job-1", 1},
		{TasksAuto, baseTasks, "optional", "plain", 1},
		{TasksAlways, baseTasks, "optional", "result of job-1", 1},
		{TasksAlways, baseTasks, "forbidden", "plain", 1},
		{TasksNever, baseTasks, "optional", "plain", 0},
		{TasksAuto, `{"cancel":{}}`, "required", "", 0}, // without the capability the value is void (L4)
	} {
		bubbleOf(t, fmt.Sprint(i), fake.Stateful, Config{Tasks: c.use}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tasks(c.caps, fake.TaskTool{Name: "t", Support: c.support, Script: func(j *fake.Job) { j.End("completed", "") }})
			r := in("a", ``)
			r.Within = time.Minute
			reply, err := h.Call(t.Context(), r, nil)
			if c.want == "" {
				if err != nil || reply.Error == nil || reply.Error.Code != -32601 {
					t.Errorf("%+v, %v", reply, err)
				}
			} else if got := textIn(t, reply, err); got != c.want {
				t.Errorf("the result is %q, want %q", got, c.want)
			}
			if got := len(s.Seen("tools/list")); got != c.listings {
				t.Errorf("%d listings, want %d", got, c.listings)
			}
			asked := strings.Contains(seenParams(s, "tools/call"), `"task":{"ttl":60000`)
			if asked != strings.HasPrefix(c.want, "result") {
				t.Errorf("called with %s", seenParams(s, "tools/call"))
			}
		})
	}
}

// How the server's task can end.
func TestServerTaskEnds(t *testing.T) {
	for name, c := range map[string]struct {
		script func(*fake.Job)
		check  func(shim.Reply, error) bool
	}{
		"isError": {func(j *fake.Job) { j.End("failed", "") }, func(r shim.Reply, err error) bool {
			return err == nil && r.IsError && r.Error == nil
		}},
		"error": {func(j *fake.Job) { j.Fail(-32077, "broken") }, func(r shim.Reply, err error) bool {
			return err == nil && r.Error != nil && r.Error.Code == -32077 && r.Error.Message == "broken"
		}},
		"cancelled by itself": {func(j *fake.Job) { j.Fail(0, "no time") }, func(r shim.Reply, err error) bool {
			return err == nil && r.Error != nil && r.Error.Code == -32603 && strings.HasSuffix(r.Error.Message, ": no time")
		}},
	} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: c.script})
			reply, err := h.Call(t.Context(), in("a", ``), nil)
			if !c.check(reply, err) {
				t.Errorf("%+v, %+v, %v", reply, reply.Error, err)
			}
			if n := s.Runs("k"); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// A server that forgets its task, and one that does not wait with its answer.
func TestServerTaskLost(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		tasks := s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(*fake.Job) {}})
		tries := 0
		s.On("tasks/result", func(x *fake.Exchange) {
			if tries++; tries == 3 {
				tasks.Forget()
			}
			fake.RPCError(200, -32600, "not yet", "")(x)
		})
		_, err := h.Call(t.Context(), in("a", ``), nil)
		var ue *shim.UpstreamError
		if !errors.As(err, &ue) || ue.Kind != shim.KindClosed || !strings.Contains(ue.Message, "no longer knows the task") {
			t.Errorf("error %v", err)
		}
		if tries != 3 || s.Runs("k") != 1 {
			t.Errorf("%d tries, %d runs", tries, s.Runs("k"))
		}
	})
}

// A server may take its time to end the stream on which it has answered with its task.
func TestServerTaskStreamStaysOpen(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(*fake.Job) {}})
		s.On("tools/call", func(x *fake.Exchange) {
			x.Event(x.Fill(`{"jsonrpc":"2.0","id":{id},"result":{"task":{"taskId":"j","status":"working"}}}`))
			<-x.R.Context().Done()
		})
		s.On("tasks/result", fake.Text("done"))
		reply, err := h.Call(t.Context(), in("a", ``), nil)
		if got := textIn(t, reply, err); got != "done" {
			t.Errorf("the result is %q", got)
		}
	})
}

// The stream of tasks/result may break as often as it likes.
func TestServerTaskBrokenWaits(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		end := make(chan struct{})
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) { <-end; j.End("completed", "") }})
		standard := make(chan struct{})
		tries := 0
		s.On("tasks/result", func(x *fake.Exchange) {
			switch tries++; {
			case tries == 20:
				close(end)
				close(standard)
				fallthrough
			case tries%3 == 0:
				x.Comment()
				x.Cut()
			case tries%3 == 1: // before the head of the response
				x.Cut()
			default:
				fake.Status(502, "text/html", "bad gateway")(x)
			}
		})
		gets := 0
		s.On("tasks/get", func(x *fake.Exchange) {
			if gets++; gets%3 == 0 {
				fake.RPCError(200, -32603, "the database is locked", "")(x)
				return
			}
			fake.Result(`{"taskId":"job-1","status":"working","ttl":null}`)(x)
		})
		done := make(chan string, 1)
		go func() {
			reply, err := h.Call(t.Context(), in("a", ``), nil)
			done <- textIn(t, reply, err)
		}()
		<-standard
		s.On("tasks/result", fake.Text("at last"))
		if got := <-done; got != "at last" || s.Runs("k") != 1 {
			t.Errorf("%q after %d runs", got, s.Runs("k"))
		}
	})
}

// Progress of a task comes by the token of its call, and where it belongs to no stream: on that
// of the session.
func TestServerTaskProgress(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) {
			<-time.After(time.Second)
			token, _ := jsonrpc.Get(s.Seen("tools/call")[0].Params, "_meta", "progressToken")
			s.Notify("notifications/progress", `{"progressToken":`+string(token)+`,"progress":3,"message":"half"}`)
			<-time.After(time.Second)
			j.End("completed", "")
		}})
		heard := make(chan string, 8)
		sink := &shimtest.Sink{OnProgress: func(p shim.Progress) { heard <- p.Message }}
		if reply, err := h.Call(t.Context(), in("a", ``), sink); err != nil || reply.Error != nil {
			t.Fatal(reply, err)
		}
		if len(heard) != 1 || <-heard != "half" {
			t.Error("the progress was not heard once")
		}
	})
}

// Who cancels has the server's task cancelled, also amid its creation, and never by
// notifications/cancelled (L28).
func TestServerTaskCancelled(t *testing.T) {
	for _, early := range []bool{false, true} {
		bubbleOf(t, fmt.Sprint("early ", early), fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			over := make(chan struct{})
			s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) { j.Cancelled(); close(over) }})
			sink := &shimtest.Sink{}
			ctx, cancel := context.WithCancel(t.Context())
			if early {
				sink.OnCheckpoint = cancelLater(cancel)
			}
			time.AfterFunc(time.Second, cancel)
			if _, err := h.Call(ctx, in("a", ``), sink); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			<-over
			asked(t, s, "notifications/cancelled", 0)
		})
	}
}

// cancelLater cancels while the named task is being noted: the second checkpoint.
func cancelLater(cancel func()) func(json.RawMessage) error {
	return func(cp json.RawMessage) error {
		if strings.Contains(string(cp), `"task":{"id"`) {
			cancel()
		}
		return nil
	}
}

// The task of a call that is let go of goes on, and another upstream client takes it up.
func TestServerTaskTakenUp(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		end := make(chan struct{})
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) { <-end; j.End("completed", "") }})
		sink := &shimtest.Sink{}
		aloftIn(t, h, in("a", ``), sink).leave(t, shim.ErrDetached)
		if !h.Resumable(sink.Latest()) {
			t.Fatalf("cannot be resumed: %s", sink.Latest())
		}
		close(end)
		reply, err := h.Resume(t.Context(), in("a", ``), sink.Latest(), &shimtest.Sink{})
		if got := textIn(t, reply, err); got != "result of job-1" {
			t.Errorf("%q", got)
		}
		if s.Runs("k") != 1 || len(s.Seen("tasks/cancel")) != 0 {
			t.Errorf("%d runs, cancelled %d times", s.Runs("k"), len(s.Seen("tasks/cancel")))
		}
	})
}

// Its questions are put to the client, without its name, and taken along by who goes on.
func TestServerTaskAsks(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) {
			a := j.Ask(`"e1"`, "elicitation/create", `{"message":"who?","requestedSchema":{"type":"object"}}`)
			name, _ := jsonrpc.GetString(a, "result", "content", "name")
			j.Keep("hello " + name)
			j.End("completed", "")
		}})
		ctx, cancel := context.WithCancelCause(t.Context())
		sink := &shimtest.Sink{}
		sink.OnAsk = func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
			if len(q) != 1 || strings.Contains(string(q[0].Params), "related-task") || !strings.Contains(string(q[0].Params), "who?") {
				t.Errorf("asked %+v", q)
			}
			cancel(shim.ErrDetached)
			return nil, context.Cause(ctx)
		}
		if _, err := h.Call(ctx, askedCall("a"), sink); !errors.Is(err, shim.ErrDetached) {
			t.Fatal(err)
		}
		next := &shimtest.Sink{}
		next.OnAsk = func(context.Context, ...shim.Question) ([]shim.Answer, error) {
			return []shim.Answer{{Result: json.RawMessage(`{"action":"accept","content":{"name":"Ada"}}`)}}, nil
		}
		reply, err := h.Resume(t.Context(), askedCall("a"), sink.Latest(), next)
		if got := textIn(t, reply, err); got != "hello Ada" {
			t.Errorf("%q", got)
		}
	})
}

// A server that knows no method of tasks for a while is asked again; one that never does fails the
// call after some minutes.
func TestServerTaskMethodsAway(t *testing.T) {
	for outage, want := range map[int64]bool{3: true, 1000: false} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) { j.End("completed", "") }})
			var all atomic.Int64
			away := fake.RPCError(200, -32601, "the tools are being loaded", "")
			s.On("tasks/get", away)
			s.On("tasks/result", func(x *fake.Exchange) {
				if all.Add(1) <= outage {
					away(x)
				} else {
					fake.Result(`{"content":[{"type":"text","text":"late"}]}`)(x)
				}
			})
			reply, err := h.Call(t.Context(), in("a", ``), nil)
			if all.Load() > lostTries+1 || (err == nil && reply.Error == nil) != want {
				t.Errorf("after %d attempts: %+v, %v", all.Load(), reply, err)
			}
		})
	}
}
