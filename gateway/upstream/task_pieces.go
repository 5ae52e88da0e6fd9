package upstream

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file takes the pieces of a result that a server streams from its task: blocks of
// SEP-1905, which are the result's and of which none may be missing or come twice, and
// partial results of SEP-2679, which are hints (protocol.md 6.4).

// flow is what is heard of a task besides its end.
type flow struct {
	in    *inbound     // what is read; guarded by the exchange's lock
	heard atomic.Int64 // when something was last read from it, in milliseconds
	left  atomic.Bool  // the stream of the call was left before its end
	away  atomic.Bool  // it is tasks/result that is read

	// Guarded by the exchange's lock.
	ahead    map[int64]json.RawMessage // blocks that came before those in front of them
	held     int                       // bytes of them
	blind    bool                      // the server does not give blocks by number
	complete bool                      // it has said that there are no more

	kick chan struct{} // a block is missing
	stop context.CancelFunc
	work sync.WaitGroup
}

// Bounds of what is kept of blocks that come out of order. What is over them is fetched
// again when its turn comes.
const (
	maxAhead      = 1024
	maxAheadBytes = 1 << 20
)

// reading notes the stream that is read now, so that it can be left.
func (t *serverTask) reading(in *inbound) {
	if t == nil {
		return
	}
	t.touch()
	t.x.mu.Lock()
	defer t.x.mu.Unlock()
	t.flow.in = in
}

// touch notes that the stream says something.
func (t *serverTask) touch() {
	if t != nil {
		t.flow.heard.Store(time.Now().UnixMilli())
	}
}

// leaveStream ends the reading of the call's stream: there is nothing more to hear on it.
func (t *serverTask) leaveStream() {
	t.flow.left.Store(true)
	t.x.mu.Lock()
	defer t.x.mu.Unlock()
	if in := t.flow.in; in != nil && in.body != nil {
		in.body.Close()
	}
}

// listen has the task hear what is said of it on other streams of its session, and holds
// the GET stream where partial results may come on it (P10). The function that it returns
// ends that, and everything else that goes on beside the call.
func (t *serverTask) listen(ctx context.Context) func() {
	if t == nil {
		return func() {}
	}
	t.x.ses.remote.add(t)
	held := t.mark.Hints && t.x.to.session != "" && t.x.ses.attend(ctx)
	return func() {
		t.settle()
		if t.flow.stop != nil {
			t.flow.stop()
			t.flow.work.Wait()
		}
		t.x.ses.remote.remove(t)
		if held {
			t.x.ses.leave(linger)
		}
	}
}

// begin starts what goes on beside the call, once the task has a name.
func (t *serverTask) begin(id string) {
	for _, params := range t.x.ses.remote.early(id) {
		t.hint(params)
	}
	if !t.mark.Streams {
		return
	}
	ctx, stop := context.WithCancel(t.x.life)
	t.flow.stop = stop
	t.flow.work.Go(func() { t.tend(ctx) })
}

// tend fetches the blocks that are missing, and looks whether the task waits for an
// answer to a question that does not come on the stream of the call (L32).
func (t *serverTask) tend(ctx context.Context) {
	every := t.poll()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.flow.kick:
			t.fetch(ctx)
			continue
		case <-tick.C:
		}
		switch quiet := time.Now().UnixMilli() - t.flow.heard.Load(); {
		case t.flow.away.Load():
			t.fetch(ctx)
		case t.x.asks && !t.flow.left.Load() && quiet >= every.Milliseconds():
			t.glance(ctx)
		}
	}
}

// glance leaves a stream on which nothing comes while the task has ended, or asks.
func (t *serverTask) glance(ctx context.Context) {
	v, err := t.look(ctx)
	if err != nil || v.refused != nil {
		return
	}
	if v.status.Final() || v.status == shim.InputRequired && len(t.x.unanswered()) == 0 {
		t.leaveStream()
	}
}

// fetch asks for the blocks after the last one that is known (A12). There has to be one:
// the draft has no number that stands for the beginning.
func (t *serverTask) fetch(ctx context.Context) {
	t.x.mu.Lock()
	seen, done := t.mark.Seen, t.flow.blind || t.flow.complete
	t.x.mu.Unlock()
	if seen < 1 || done {
		return
	}
	m, err := t.query(ctx, mcp.MethodTasksResult, strconv.AppendInt([]byte(`"lastSeqNr":`), seen, 10))
	if ctx.Err() != nil {
		return
	}
	_, pieces := jsonrpc.Get(m.Result, "partial-content")
	switch {
	case pieces:
		t.blocks(m.Result)
	case err == nil, err == errSlow: // it refuses, or waits for the end as for any tasks/result
		t.x.amend(func(*checkpoint) { t.flow.blind = true })
	}
}

// blocks takes the blocks of one answer: repeats are dropped, and those whose turn has
// not come are kept until it has (A11).
func (t *serverTask) blocks(result []byte) {
	x := t.x
	x.handing.Lock() // no checkpoint may be stored that is older than these
	defer x.handing.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	var ready []json.RawMessage
	list, _ := jsonrpc.Get(result, "partial-content")
	for b := range jsonrpc.Elements(list) {
		t.keep(b)
		ready = t.advance(ready)
	}
	if v, _ := jsonrpc.Get(result, "isComplete"); string(v) == "true" {
		t.flow.complete = true
	}
	if first := !t.mark.Content; first || len(ready) > 0 {
		t.mark.Content = true
		t.hand(shim.Piece{Blocks: ready, Content: true, Checkpoint: x.state.encode()})
	}
	if len(t.flow.ahead) > 0 {
		signal(t.flow.kick)
	}
}

// keep keeps a block until its turn, which is mostly at once. The exchange's lock is held.
func (t *serverTask) keep(b json.RawMessage) {
	v, _ := jsonrpc.Get(b, "seqNr")
	n := integer(v)
	if _, have := t.flow.ahead[n]; have || n <= t.mark.Seen {
		return
	}
	if n > t.mark.Seen+1 && (len(t.flow.ahead) >= maxAhead || t.flow.held+len(b) > maxAheadBytes) {
		return
	}
	bare, err := jsonrpc.Delete(b, "seqNr")
	if err != nil {
		return
	}
	if t.flow.ahead == nil {
		t.flow.ahead = make(map[int64]json.RawMessage)
	}
	t.flow.ahead[n] = bare
	t.flow.held += len(bare)
}

// advance adds the blocks whose turn has come. The exchange's lock is held.
func (t *serverTask) advance(ready []json.RawMessage) []json.RawMessage {
	for {
		b, ok := t.flow.ahead[t.mark.Seen+1]
		if !ok {
			return ready
		}
		t.mark.Seen++
		t.flow.held -= len(b)
		delete(t.flow.ahead, t.mark.Seen)
		ready = append(ready, b)
	}
}

// hint takes the params of notifications/tasks/partial (P1). One that was heard before
// is dropped, and one that is missing is lost (P4). Where the server streams the result
// itself, no number travels twice (A10), so its hints are not needed.
func (t *serverTask) hint(params []byte) {
	v, _ := jsonrpc.Get(params, "seq")
	seq, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || seq < 0 {
		t.x.h.log.Debug("partial result without a number", "seq", string(v))
		return
	}
	list, _ := jsonrpc.Get(params, "content")
	var blocks []json.RawMessage
	for b := range jsonrpc.Elements(list) {
		if jsonrpc.IsObject(b) {
			blocks = append(blocks, raw(b))
		}
	}
	x := t.x
	x.handing.Lock()
	defer x.handing.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !t.mark.Hints || t.mark.Content || seq < t.mark.Next {
		return
	}
	if seq > t.mark.Next {
		x.h.log.Debug("partial results of the server were lost", "expected", t.mark.Next, "got", seq)
	}
	t.mark.Next = seq + 1
	t.hand(shim.Piece{Blocks: blocks, Checkpoint: x.state.encode()})
}

// hand gives pieces to a sink that takes them. The exchange's lock is held, so that they
// come in order.
func (t *serverTask) hand(p shim.Piece) {
	if s, ok := t.x.sink.(shim.PieceSink); ok {
		s.Piece(p)
	}
}

// remoteTasks are the tasks of a session's server that calls wait for. The zero value
// has none.
type remoteTasks struct {
	mu sync.Mutex
	m  map[*serverTask]struct{}
	// kept are partial results of tasks that nobody knows yet: they may come before the
	// answer that names the task.
	kept []json.RawMessage
}

// maxKept bounds them.
const maxKept = 64

func (r *remoteTasks) add(t *serverTask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = make(map[*serverTask]struct{})
	}
	r.m[t] = struct{}{}
}

func (r *remoteTasks) remove(t *serverTask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, t)
	if len(r.m) == 0 {
		r.kept = nil
	}
}

// partial hears a partial result, on whichever stream of the session it came.
func (r *remoteTasks) partial(params []byte) {
	id, _ := jsonrpc.GetString(params, "taskId")
	t, unnamed := r.find(id)
	if t != nil {
		t.hint(params)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if unnamed && len(r.m) > 0 && len(r.kept) < maxKept {
		r.kept = append(r.kept, raw(params))
	}
}

// early are the partial results that came before their task had a name.
func (r *remoteTasks) early(id string) (mine []json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var others []json.RawMessage
	for _, params := range r.kept {
		if of, _ := jsonrpc.GetString(params, "taskId"); of == id {
			mine = append(mine, params)
		} else {
			others = append(others, params)
		}
	}
	r.kept = others
	return mine
}

// find returns the call that waits for the task of that name, or nil, and whether there
// is one whose task has no name yet.
func (r *remoteTasks) find(id string) (t *serverTask, unnamed bool) {
	r.mu.Lock()
	all := make([]*serverTask, 0, len(r.m))
	for t := range r.m {
		all = append(all, t)
	}
	r.mu.Unlock()
	for _, t := range all {
		switch t.id() {
		case "":
			unnamed = true
		case id:
			return t, unnamed
		}
	}
	return nil, unnamed
}
