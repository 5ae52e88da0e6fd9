package upstream

import (
	"context"
	"strconv"
	"sync"
	"time"

	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// This file has the server run a call as a task of its own (design.md 0.25). A legacy server is asked for a
// task (L6), if the tool can be called in no other way, or the operator wants it. A modern server is told
// that it may make one, and decides (T4). The id of that task stays between the gateway and the server (H11).

// serverTask is the task that a server makes of the call of an exchange. The exchange's checkpoint has its
// mark, under the exchange's lock.
type serverTask struct {
	x       *exchange
	mark    *taskMark
	settled chan struct{} // closed once the server has named the task, or will not
	once    sync.Once
	// naming is how long a cancelled call waits for settled.
	naming time.Duration

	telling work.Turn // had while the server is told that the task is abandoned
	told    bool      // it was; telling guards it

	// Fields of the goroutine of the call.
	awaiting bool   // the call has been answered, and the end of the task is awaited
	reopened bool   // the stream that a checkpoint names has been asked for
	working  bool   // the server has just reported the status working
	said     string // the last status message that was handed on
}

func newServerTask(x *exchange, mark *taskMark) *serverTask {
	t := &serverTask{x: x, mark: mark, settled: make(chan struct{}), telling: work.NewTurn()}
	x.checkpoints.state.Task = mark
	if x.to.era == mcp.Legacy {
		t.naming = cancelTimeout
	}
	return t
}

// followAnswer goes on from the answer to the call.
func (t *serverTask) followAnswer(ctx context.Context, err error) error {
	t.noteNamed()
	switch {
	case t.x.checkpoints.taskID() == "":
		return err
	case causeOf(ctx) != nil:
		if !isDetached(ctx) { // its name may have come too late for the cancellation
			t.abandonTask(ctx)
		}
		return causeOf(ctx)
	case isFinal(err):
		t.abandonTask(ctx)
		return err
	}
	return t.awaitEnd(ctx)
}

// noteNamed closes settled: the server has named its task, or will not. A nil task is ignored.
func (t *serverTask) noteNamed() {
	if t != nil {
		t.once.Do(func() { close(t.settled) })
	}
}

// takeAnswer takes what the answer to the call says of the task. At a modern server the result is the task
// itself (T14).
func (t *serverTask) takeAnswer(ctx context.Context, a reading.Response) {
	if t.awaiting || a.Error != nil {
		return
	}
	task := a.Task
	if t.x.to.era != mcp.Legacy {
		if kind, _ := jsonrpc.String(a.ResultType); kind != mcp.ResultTask {
			return
		}
		task = a.Result
	}
	id, _ := jsonrpc.GetString(task, "taskId")
	if id == "" || t.x.checkpoints.taskID() != "" {
		return
	}
	v := viewOf(task)
	t.working = v.status == shim.Working
	t.x.checkpoints.amendCheckpoint(func(*checkpoint) { t.mark.ID, t.mark.Poll, t.mark.TTL = id, v.poll, v.ttl })
	t.x.checkpoints.handOver(ctx)
	t.noteNamed()
	if t.x.to.era == mcp.Modern && t.working {
		t.tellStatus(v.message)
	}
}

// readInteger reads a JSON integer; 0 for anything else.
func readInteger(v []byte) int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
