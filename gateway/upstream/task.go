package upstream

import (
	"context"
	"strconv"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file makes a call one that a server runs as a task of its own (design.md 0.25). A
// legacy server is asked for one (L6), where the tool can be called in no other way, or where
// the operator wants it. A modern one is told that it may make one, and decides (T4). Nobody
// sees that task: its id stays between the gateway and the server (H11).

// TaskUse says for which calls the client uses tasks of a server's own.
type TaskUse string

// The uses. The empty TaskUse is TasksAuto.
const (
	// TasksAuto uses them for tools that require one (L4), and wherever a modern server
	// makes one.
	TasksAuto TaskUse = "auto"
	// TasksAlways uses them for every tool that can be called so: such a call outlives
	// the gateway's connection, and the gateway. Of a modern server it is TasksAuto.
	TasksAlways TaskUse = "always"
	// TasksNever calls every tool plainly. A modern server is not told that it may make one.
	TasksNever TaskUse = "never"
)

// taskMark is the part of a checkpoint that is about a task of the server. Like all of
// it, it outlives the process: fields may be added.
type taskMark struct {
	// ID is the server's name for the task, "" before it has told it.
	ID string `json:"id,omitempty"`
	// Wait is the id of the tasks/result to whose stream checkpoint.Last belongs; ""
	// for that of the call.
	Wait string `json:"wait,omitempty"`
	// Poll is how often the server wants to be asked, and TTL how long it keeps the task from
	// its creation on, 0 for unknown or for ever; both in milliseconds.
	Poll int64 `json:"poll,omitempty"`
	TTL  int64 `json:"ttl,omitempty"`
	// Keys are the questions of a modern server's task that were put to the client, by the
	// server's names: none is put twice (T39, T49).
	Keys []string `json:"keys,omitempty"`
	// Told is the furthest progress of the call that was handed on: what is told of the task
	// of a modern server goes on above it.
	Told float64 `json:"told,omitempty"`
}

// serverTask is the task that a server makes of the call of an exchange. The mark that
// it fills is in the exchange's checkpoint, under the exchange's lock. A nil serverTask
// is that of a call which is none.
type serverTask struct {
	x       *exchange
	mark    *taskMark
	settled chan struct{} // closed once the server has named the task, or will not
	once    sync.Once
	// naming is how long a cancelled call waits for that.
	naming time.Duration

	given sync.Once // the server has been told that nobody waits for the task

	// Of the goroutine of the call.
	awaiting bool   // the call has been answered: the end of the task is what is waited for
	reopened bool   // the stream that a checkpoint names has been asked for
	working  bool   // the server has just said so
	said     string // the status message that was handed on last
}

// makesTasks reports whether the server of a session declares that it makes tasks of tool
// calls (L1). Of a session that another replica opened it may be known from another one;
// where it is not, the tools list alone has to say.
func (t *sessionTable) makesTasks(ctx context.Context, s *session, l *link) bool {
	srv := l.server
	if newer := t.introduced(ctx, s.from); newer.Raw != nil {
		srv = newer
	}
	if srv.Raw == nil {
		return true
	}
	v, _ := jsonrpc.Get(srv.Capabilities, "tasks", "requests", "tools", "call")
	return jsonrpc.IsObject(v)
}

// asTask has the server run the call as a task, where that is the way to call the tool
// (L4). Where it cannot be found out, the call goes as it is.
func (c *call) asTask(ctx context.Context, x *exchange, l *link) {
	if c.r.Method != mcp.MethodToolsCall || c.h.wire.cfg.Tasks == TasksNever || l.version != mcp.Version20251125 {
		return
	}
	if !c.h.sessions.makesTasks(ctx, x.ses, l) {
		return
	}
	name, _ := jsonrpc.GetString(c.r.Params, "name")
	tool, ok, err := c.h.tools.find(ctx, c.r.Session, name)
	if err != nil {
		c.h.wire.log.Debug("tools could not be listed before a call", "err", err)
	}
	if !ok || !c.wantsTask(tool) {
		return
	}
	params, err := jsonrpc.Set(x.params, taskParams(c.r.Within), "task")
	if err != nil { // params that are no object: the server says so
		return
	}
	x.task = newServerTask(x, &taskMark{})
	x.params = params
}

// wantsTask decides by what the tool's entry says (L4).
func (c *call) wantsTask(tool Tool) bool {
	support, _ := jsonrpc.GetString(tool.Raw, "execution", "taskSupport")
	return support == "required" || support == "optional" && c.h.wire.cfg.Tasks == TasksAlways
}

func newServerTask(x *exchange, mark *taskMark) *serverTask {
	t := &serverTask{x: x, mark: mark, settled: make(chan struct{})}
	if x.to.era == mcp.Legacy {
		t.naming = cancelTimeout
	}
	return t
}

// taskParams are the members of params.task. The ttl that is wished for is the longest
// that the call may take: a shorter one could end the task while it runs (H9).
func taskParams(within time.Duration) []byte {
	p := []byte("{}")
	if within > 0 {
		p = jsonrpc.Extend(p, strconv.AppendInt([]byte(`"ttl":`), within.Milliseconds(), 10))
	}
	return p
}

// through reads the answer to the request, and where that is a task, follows the task to
// its end.
func (x *exchange) through(ctx context.Context, in *inbound) error {
	err := x.converse(ctx, in)
	if x.task == nil {
		return err
	}
	return x.task.after(ctx, err)
}

// after goes on from the answer to the call.
func (t *serverTask) after(ctx context.Context, err error) error {
	t.settleName()
	switch {
	case t.id() == "":
		return err
	case ended(ctx) != nil:
		if !detached(ctx) { // its name may have come too late for whoever cancelled the call
			t.abandon(ctx)
		}
		return ended(ctx)
	case err != nil && !passing(err):
		t.abandon(ctx)
		return err
	}
	return t.await(ctx)
}

// unrelated is an object without the related-task of its metadata, which names a task
// that is not the client's (H14).
func unrelated(obj []byte) []byte {
	if _, ok := jsonrpc.Get(obj, "_meta", mcp.MetaRelatedTask); !ok {
		return obj
	}
	out, err := jsonrpc.Delete(obj, "_meta", mcp.MetaRelatedTask)
	if err != nil {
		return obj
	}
	meta, _ := jsonrpc.Get(out, "_meta")
	for range jsonrpc.Members(meta) {
		return out
	}
	if less, err := jsonrpc.Delete(out, "_meta"); err == nil {
		return less
	}
	return out
}

// related is the id of the task that an object's metadata names.
func related(obj []byte) string {
	id, _ := jsonrpc.GetString(obj, "_meta", mcp.MetaRelatedTask, "taskId")
	return id
}

// id is the server's name for the task, "" where there is none or it is not known yet.
func (t *serverTask) id() string {
	if t == nil {
		return ""
	}
	t.x.rec.mu.Lock()
	defer t.x.rec.mu.Unlock()
	return t.mark.ID
}

// settleName says that the server has named its task, or will not.
func (t *serverTask) settleName() {
	if t != nil {
		t.once.Do(func() { close(t.settled) })
	}
}

// answered takes what the answer to the call says of the task. A modern server's is the result
// itself (T14).
func (t *serverTask) answered(ctx context.Context, m jsonrpc.Message) {
	if t == nil || t.awaiting || m.Error != nil {
		return
	}
	task := m.Result
	if t.x.to.era == mcp.Legacy {
		task, _ = jsonrpc.Get(m.Result, "task")
	} else if kind, _ := jsonrpc.GetString(m.Result, "resultType"); kind != mcp.ResultTask {
		return
	}
	id, _ := jsonrpc.GetString(task, "taskId")
	if id == "" || t.id() != "" {
		return
	}
	v := viewOf(task)
	t.working = v.status == shim.Working
	t.x.rec.amend(func(*checkpoint) { t.mark.ID, t.mark.Poll, t.mark.TTL = id, v.poll, v.ttl })
	t.x.rec.handOver(ctx)
	t.settleName()
	if t.x.to.era == mcp.Modern && t.working {
		t.tell(v.message)
	}
}

// integer reads a JSON integer, 0 if it is none.
func integer(v []byte) int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
