package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// streamed is a call of a tool that streams, under way in a bubble.
type streamed struct {
	t    *testing.T
	sink *pieceSink
	stop context.CancelCauseFunc
	done chan streamedReply
}

type streamedReply struct {
	reply shim.Reply
	err   error
}

func (c *streamed) begin(run func(context.Context, *pieceSink) (shim.Reply, error)) {
	ctx, stop := context.WithCancelCause(c.t.Context())
	c.stop, c.done = stop, make(chan streamedReply, 1)
	go func() {
		reply, err := run(ctx, c.sink)
		c.done <- streamedReply{reply, err}
	}()
}

// stream makes the call.
func stream(t *testing.T, h *HTTP) *streamed {
	c := &streamed{t: t, sink: &pieceSink{}}
	c.begin(func(ctx context.Context, s *pieceSink) (shim.Reply, error) { return h.Call(ctx, watching("a"), s) })
	return c
}

// heard lets everything happen that is due after d, and wants these pieces so far.
func (c *streamed) heard(d time.Duration, want string) {
	c.t.Helper()
	<-time.After(d)
	synctest.Wait()
	if got := c.sink.heard(); got != want {
		c.t.Errorf("pieces %q, want %q", got, want)
	}
}

func (c *streamed) result(want string) {
	c.t.Helper()
	r := <-c.done
	if got := textIn(c.t, r.reply, r.err); got != want {
		c.t.Errorf("the result is %q, want %q", got, want)
	}
}

// scriptedTool is one tool whose only task is driven by the test.
func scriptedTool(s *fake.Server, capability string) (*fake.Tasks, <-chan *fake.Job) {
	jobs := make(chan *fake.Job, 4)
	return s.Tasks(capability, fake.TaskTool{Name: "t", Support: "optional", Script: func(j *fake.Job) { jobs <- j }}), jobs
}

// streamedJob makes a call of such a tool of a server that streams its results.
func streamedJob(t *testing.T, s *fake.Server, h *HTTP) (*streamed, *fake.Job) {
	_, jobs := scriptedTool(s, streamTasks)
	return stream(t, h), <-jobs
}

// Blocks come in order, each once, whatever the server repeats, groups or skips; those
// that it skips are fetched.
func TestServerStreams(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		c, j := streamedJob(t, s, h)
		c.heard(0, "")
		j.Say("a", "b")
		c.heard(0, "a b")
		j.Send(1, 2)
		j.Send(2, 2)
		c.heard(0, "a b")
		j.Keep("c", "d")
		j.Send(2, 4)
		c.heard(0, "a b c d")
		if n := len(s.Seen("tasks/result")); n != 0 {
			t.Errorf("%d fetches of what was not missing", n)
		}
		j.Keep("e", "f")
		j.Send(6, 6)
		c.heard(0, "a b c d e f")
		if got := seenParams(s, "tasks/result"); got != `{"taskId":"job-1","lastSeqNr":4}` {
			t.Errorf("fetched with %s", got)
		}
		j.End("completed", `,"structuredContent":{"n":1}`)
		c.result("a b c d e f")
		c.heard(0, "a b c d e f")
		if got := seenParams(s, "tools/call"); s.Runs("k") != 1 || !strings.Contains(got, `"responseModes":["streaming","task"]`) {
			t.Errorf("%d runs, called with %s", s.Runs("k"), got)
		}
	})
}

// A block in front of all that are known cannot be fetched (A12), and comes with the
// result; nothing behind it is shown before.
func TestServerStreamWithoutBeginning(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		c, j := streamedJob(t, s, h)
		j.Keep("a", "b")
		j.Send(2, 2)
		c.heard(time.Second, "")
		j.End("completed", "")
		c.result("a b")
		c.heard(0, "")
	})
}

// A stream that breaks is gone on with by number, until the result is there.
func TestServerStreamBreaks(t *testing.T) {
	for name, cut := range map[string]bool{"cut": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
				c, j := streamedJob(t, s, h)
				j.Say("a")
				c.heard(0, "a")
				j.Break(cut)
				j.Keep("b", "c")
				c.heard(time.Second, "a b c")
				j.Keep("d")
				c.heard(time.Second, "a b c d")
				j.Keep("e")
				j.End("completed", "")
				c.result("a b c d e")
				if s.Runs("k") != 1 {
					t.Errorf("%d runs", s.Runs("k"))
				}
			})
		})
	}
}

// Whoever goes on with the call shows nothing twice and leaves nothing out.
func TestServerStreamTakenUp(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		c, j := streamedJob(t, s, h)
		j.Say("a", "b")
		c.heard(0, "a b")
		c.stop(shim.ErrDetached)
		if r := <-c.done; !errors.Is(r.err, shim.ErrDetached) {
			t.Fatal(r.err)
		}
		mark := c.sink.latest
		j.Keep("c")
		next := &streamed{t: t, sink: &pieceSink{}}
		next.begin(func(ctx context.Context, sink *pieceSink) (shim.Reply, error) {
			return h.Resume(ctx, watching("a"), mark, sink)
		})
		next.heard(time.Second, "c")
		j.Keep("d")
		next.heard(time.Second, "c d")
		j.End("completed", "")
		next.result("a b c d")
		if s.Runs("k") != 1 || j.Status() != "completed" {
			t.Errorf("%d runs, %s", s.Runs("k"), j.Status())
		}
	})
}

// A question that does not come on the stream of the call is heard, and the pieces after
// it as well.
func TestServerStreamAsks(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		_, jobs := scriptedTool(s, streamTasks)
		c := stream(t, h)
		asked := make(chan shim.Question, 1)
		answer := make(chan string)
		c.sink.OnAsk = func(_ context.Context, q ...shim.Question) ([]shim.Answer, error) {
			asked <- q[0]
			return []shim.Answer{{Result: json.RawMessage(`{"action":"accept","content":{"name":"` + <-answer + `"}}`)}}, nil
		}
		j := <-jobs
		j.Say("a")
		c.heard(0, "a")
		go func() {
			a := j.Ask(`7`, "elicitation/create", `{"message":"who?","requestedSchema":{"type":"object"}}`)
			name, _ := jsonrpc.GetString(a, "result", "content", "name")
			j.Keep(name)
		}()
		if q := <-asked; !strings.Contains(string(q.Params), "who?") || strings.Contains(string(q.Params), "job-1") {
			t.Errorf("asked %s", q.Params)
		}
		answer <- "Ada"
		c.heard(time.Second, "a Ada")
		j.End("completed", "")
		c.result("a Ada")
	})
}

// Cancelling ends the task at the server, and the stream.
func TestServerStreamCancelled(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		c, j := streamedJob(t, s, h)
		j.Say("a")
		c.heard(0, "a")
		c.stop(context.Canceled)
		if r := <-c.done; !errors.Is(r.err, context.Canceled) {
			t.Fatal(r.err)
		}
		if j.Status() != "cancelled" || len(s.Seen("notifications/cancelled")) != 0 {
			t.Errorf("the task is %s", j.Status())
		}
	})
}

// The server's task fails amid its stream.
func TestServerStreamFails(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		c, j := streamedJob(t, s, h)
		j.Say("a")
		c.heard(0, "a")
		j.End("failed", "")
		if r := <-c.done; r.err != nil || !r.reply.IsError {
			t.Errorf("%+v, %v", r.reply, r.err)
		}
	})
}

// Hints come in order, each once; what is lost stays lost; and the first may come before
// the task has a name.
func TestServerHints(t *testing.T) {
	bubble(t, fake.Stateful, drafts, func(t *testing.T, s *fake.Server, h *HTTP) {
		jobs := make(chan *fake.Job, 1)
		named := make(chan struct{})
		s.Tasks(partialTasks, fake.TaskTool{
			Name: "t", Support: "optional",
			First:  func(j *fake.Job) { j.Hint(0, "a"); <-named },
			Script: func(j *fake.Job) { jobs <- j },
		})
		c := stream(t, h)
		c.heard(time.Second, "")
		close(named)
		j := <-jobs
		j.Hint(1, "b")
		c.heard(0, "~a ~b")
		j.Hint(1, "b")
		j.Hint(0, "a")
		c.heard(0, "~a ~b")
		j.Hint(3, "d")
		j.Hint(2, "c")
		c.heard(0, "~a ~b ~d")
		s.Notify("notifications/tasks/partial", `{"taskId":"job-9","seq":4,"content":[{"type":"text","text":"another's"}]}`)
		s.Notify("notifications/tasks/partial", `{"taskId":"job-1","seq":"4","content":[{"type":"text","text":"none"}]}`)
		c.heard(0, "~a ~b ~d")
		mark := c.sink.latest
		c.stop(shim.ErrDetached)
		<-c.done
		next := &streamed{t: t, sink: &pieceSink{}}
		next.begin(func(ctx context.Context, sink *pieceSink) (shim.Reply, error) {
			return h.Resume(ctx, watching("a"), mark, sink)
		})
		next.heard(0, "")
		j.Hint(3, "d")
		j.Hint(4, "e")
		next.heard(0, "~e")
		j.End("completed", "")
		next.result("result of job-1")
	})
}
