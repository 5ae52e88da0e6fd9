package upstream

import (
	"context"
	"encoding/json"
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

// serverTask is the task that a server makes of the call of an exchange. The mark that
// it fills is in the exchange's checkpoint, under the exchange's lock.
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

func newServerTask(x *exchange, mark *taskMark) *serverTask {
	t := &serverTask{x: x, mark: mark, settled: make(chan struct{})}
	x.rec.state.Task = mark
	if x.to.era == mcp.Legacy {
		t.naming = cancelTimeout
	}
	return t
}

// followAnswer goes on from the answer to the call.
func (t *serverTask) followAnswer(ctx context.Context, err error) error {
	t.noteNamed()
	switch {
	case t.x.rec.taskID() == "":
		return err
	case causeOf(ctx) != nil:
		if !isDetached(ctx) { // its name may have come too late for whoever cancelled the call
			t.abandonTask(ctx)
		}
		return causeOf(ctx)
	case err != nil && !isPassing(err):
		t.abandonTask(ctx)
		return err
	}
	return t.awaitEnd(ctx)
}

// noteNamed says that the server has named its task, or will not. There is nothing to say of a call without one.
func (t *serverTask) noteNamed() {
	if t != nil {
		t.once.Do(func() { close(t.settled) })
	}
}

// readAnswer takes what the answer to the call says of the task. A modern server's is the result
// itself (T14).
func (t *serverTask) readAnswer(ctx context.Context, m jsonrpc.Message) {
	if t.awaiting || m.Error != nil {
		return
	}
	var found [2]json.RawMessage
	m.PickResult([]string{"task", "resultType"}, found[:])
	task := found[0]
	if t.x.to.era != mcp.Legacy {
		if kind, _ := jsonrpc.String(found[1]); kind != mcp.ResultTask {
			return
		}
		task = m.Result
	}
	id, _ := jsonrpc.GetString(task, "taskId")
	if id == "" || t.x.rec.taskID() != "" {
		return
	}
	v := viewOf(task)
	t.working = v.status == shim.Working
	t.x.rec.amendCheckpoint(func(*checkpoint) { t.mark.ID, t.mark.Poll, t.mark.TTL = id, v.poll, v.ttl })
	t.x.rec.handOver(ctx)
	t.noteNamed()
	if t.x.to.era == mcp.Modern && t.working {
		t.tellStatus(v.message)
	}
}

// readInteger reads a JSON integer, 0 if it is none.
func readInteger(v []byte) int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
