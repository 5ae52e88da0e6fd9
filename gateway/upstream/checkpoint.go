package upstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/job"
)

// checkpoint is all that another replica needs to go on with a call (design.md 0.6). A stored checkpoint
// outlives the process that wrote it: fields may be added, and keep their meaning.
type checkpoint struct {
	Era     string `json:"era"`
	Version string `json:"version"`
	// Session is the upstream session's id, and Cookie what a balancer knows it by. Generation is that of a shared
	// session.
	Session    string `json:"session,omitempty"`
	Cookie     string `json:"cookie,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// ID is the call's JSON-RPC id and progress token.
	ID string `json:"id"`
	// Called is the name by which the client has called the tool, if the server is called by another one
	// (shim.Request.Shown).
	Called string `json:"called,omitempty"`
	// Last is the id of the last event read from the call's stream. With it the
	// call can be resumed (X8).
	Last string `json:"last,omitempty"`
	// Asked counts the questions of the call, so that keys stay unique (T39).
	Asked int `json:"asked,omitempty"`
	// Pending are the questions that the server waits for.
	Pending []pending `json:"pending,omitempty"`
	// SessionQuestion says that Pending has a session question, and that there is no call.
	SessionQuestion bool `json:"alone,omitempty"`
	// OnCalls says that the calls of the session show that question: its client has no stream of its own.
	OnCalls bool `json:"onCalls,omitempty"`
	// Task is set if the server runs the call as a task of its own.
	Task *taskMark `json:"task,omitempty"`
	// Job is set once the call has started a job that is followed by other calls.
	Job *job.Mark `json:"job,omitempty"`
}

// pending is a request of the server that waits for its answer.
type pending struct {
	ID     json.RawMessage `json:"id"` // as the server spelt it
	Key    string          `json:"key"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
	// OnGET says that it came on the GET stream of the session.
	OnGET bool `json:"aside,omitempty"`
	// Shown says that the call only shows a session question, whose own record has the answer.
	Shown bool `json:"shown,omitempty"`

	// stage says how far it is here; a replica that goes on from the checkpoint puts it to the client again.
	stage stage
	// over is closed when the call shows it no more, and has the answer before, if the call got one. It is nil for other
	// questions, and after an adoption.
	over chan shim.Answer
}

// stage says how far the question of a call is.
type stage int

const (
	questionWaiting   stage = iota // to be put to the client
	questionPut                    // the client has it
	questionWithdrawn              // the client has it, but the server no longer waits
	questionSettled                // the server gets its answer, or none: a withdrawal comes too late
)

// requestID is the id of the request, which was parsed before.
func (p pending) requestID() jsonrpc.ID {
	id, _ := jsonrpc.ParseID(p.ID)
	return id
}

// closeQuestions notes that these questions are settled.
func (c *checkpoint) closeQuestions(asked []pending) {
	c.Pending = slices.DeleteFunc(slices.Clone(c.Pending), func(p pending) bool {
		return slices.ContainsFunc(asked, func(a pending) bool { return a.Key == p.Key })
	})
}

func (c *checkpoint) encodeCheckpoint() json.RawMessage {
	b, _ := json.Marshal(c) // raw members come from a parsed message: always succeeds
	return b
}

// decodeResumable reads a checkpoint, and reports whether a call can go on from it: by its stream, by the
// server's task, by the job that it has started, or as a question that only has to be asked.
func decodeResumable(cp json.RawMessage) (checkpoint, bool) {
	var c checkpoint
	err := json.Unmarshal(cp, &c)
	resumable := c.hasStream() || c.sessionQuestion() || c.Task != nil && c.Task.ID != "" || c.Job != nil && len(c.Job.ID) > 0
	return c, err == nil && resumable && mcp.EraOf(c.Version).String() == c.Era
}

// hasStream reports whether the stream of the call can be resumed from here.
func (c *checkpoint) hasStream() bool {
	return c.Era == mcp.Legacy.String() && c.Last != ""
}

// checkpointer has the checkpoint of an exchange, and hands it over. The goroutine that reads the stream and the one
// that asks the client change it. mu guards the state; the reader reads what only it changes without the lock. Whoever tells
// the sink something has the turn, and mu for moments only: to tell may wait for a client that reads slowly.
type checkpointer struct {
	sink shim.Sink
	log  *slog.Logger

	turn work.Turn

	mu    sync.Mutex
	state checkpoint

	aside asides

	// Fields of the goroutine that reads.
	noted   time.Time // when an event id was last handed over
	unnoted bool      // the last event id is still to be handed over
}

func newCheckpointer(sink shim.Sink, log *slog.Logger, state checkpoint) checkpointer {
	return checkpointer{sink: sink, log: log, state: state, turn: work.NewTurn()}
}

func (r *checkpointer) amendCheckpoint(change func(*checkpoint)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}

// openQuestions are the questions that the server waits for: those that were put to the client, and those
// that will be next.
func (r *checkpointer) openQuestions() []pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.state.Pending)
}

// hasWaiting reports whether there are questions to put to the client.
func (r *checkpointer) hasWaiting() bool {
	return slices.ContainsFunc(r.openQuestions(), func(p pending) bool { return p.stage == questionWaiting })
}

// moveQuestions moves the questions that are at one of these stages on. It returns them as they were.
func (r *checkpointer) moveQuestions(to stage, from ...stage) (moved []pending) {
	r.amendCheckpoint(func(c *checkpoint) {
		for i := range c.Pending {
			if p := &c.Pending[i]; slices.Contains(from, p.stage) {
				moved = append(moved, *p)
				p.stage = to
			}
		}
	})
	return moved
}

// saveCheckpoint hands the checkpoint over. If that fails, the call goes on, and can only be resumed from
// further back.
func (r *checkpointer) saveCheckpoint(ctx context.Context) {
	r.turn.Take()
	stored := r.sink.Checkpoint(r.encodeState())
	r.turn.Give()
	if err := stored(ctx); err != nil {
		r.log.Debug("checkpoint was not taken", "err", err)
	}
}

// encodeState spells the checkpoint as it is now. The turn is had until it is handed over, so that an older one never
// follows a newer one.
func (r *checkpointer) encodeState() json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.encodeCheckpoint()
}

func (r *checkpointer) markEvent(eventID string) {
	if eventID != r.state.Last {
		r.amendCheckpoint(func(c *checkpoint) { c.Last = eventID })
		r.unnoted = true
	}
}

// isDue reports whether a new event id that no progress carried is to be handed over: at most once per second. A resumed
// stream replays the events in between.
func (r *checkpointer) isDue() bool { return r.unnoted && time.Since(r.noted) >= time.Second }

// handOver hands over how far the stream was read.
func (r *checkpointer) handOver(ctx context.Context) {
	r.noted, r.unnoted = time.Now(), false
	r.saveCheckpoint(ctx)
}

// saveUnnoted hands over the last event id of a detached call.
func (r *checkpointer) saveUnnoted(ctx context.Context) {
	if isDetached(ctx) && r.unnoted {
		r.handOver(ctx)
	}
}

// tellSink runs what, which tells the sink something. Only one such function runs at a time.
func (r *checkpointer) tellSink(what func()) {
	r.turn.Take()
	defer r.turn.Give()
	what()
}

// asides are what other streams than that of the call, and other replicas, have for its sink. A goroutine tells them, so
// that a slow client holds up its own call alone, and misses what there is no room for. mu guards the fields below it.
type asides struct {
	size atomic.Int64  // bytes in the queue
	done chan struct{} // closed once the goroutine has ended

	mu    sync.Mutex
	queue chan func() // nil before the first
	over  bool        // the sink is told nothing more
}

const (
	mostAsides = 1024        // notifications in the queue
	maxAsides  = 256 << 10   // bytes in the queue, before the last of them
	asidesMost = time.Second // how long the end of a call waits for a slow client, before the queue is dropped
)

// tellAside has the sink told a notification by a goroutine.
func (r *checkpointer) tellAside(params []byte, tell func()) {
	a, size := &r.aside, int64(len(params))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.size.Load() > maxAsides {
		return
	}
	if a.queue == nil {
		a.queue, a.done = make(chan func(), mostAsides), make(chan struct{})
		go r.tellAsides(a.queue)
	}
	select {
	case a.queue <- func() { tell(); a.size.Add(-size) }:
		a.size.Add(size)
	default:
	}
}

// tellAsides tells the sink what is in the queue.
func (r *checkpointer) tellAsides(queue <-chan func()) {
	defer close(r.aside.done)
	for tell := range queue {
		r.tellSink(tell)
	}
}

// finishAsides waits until the sink has been told what is in the queue.
func (r *checkpointer) finishAsides() {
	a := &r.aside
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	if a.queue == nil {
		return
	}
	close(a.queue)
	if late := work.PauseUntil(a.done, asidesMost); late {
		for range a.queue { // is dropped
		}
		<-a.done
	}
}

// passProgress hands on a progress, together with an event id that is still to be handed over.
func (r *checkpointer) passProgress(p shim.Progress) {
	r.turn.Take()
	defer r.turn.Give()
	if r.unnoted {
		r.unnoted = false
		p.Checkpoint = r.encodeState()
	}
	r.sink.Progress(p)
}

// taskMark is the part of a checkpoint that is about a task of the server. It outlives the process, too:
// fields may be added.
type taskMark struct {
	// ID is the server's name for the task, "" until the server has told it.
	ID string `json:"id,omitempty"`
	// Wait is the id of the tasks/result to whose stream checkpoint.Last belongs; "" for the stream of the
	// call.
	Wait string `json:"wait,omitempty"`
	// Poll is how often the server wants to be asked. TTL is how long it keeps the task from its creation on;
	// 0 if unknown or for ever. Both are in milliseconds.
	Poll int64 `json:"poll,omitempty"`
	TTL  int64 `json:"ttl,omitempty"`
	// Keys are the server's names of the questions of a modern server's task that were put to the client:
	// each is put once (T39, T49).
	Keys []string `json:"keys,omitempty"`
	// Told is the furthest progress of the call that was handed on. The status messages of a modern server's
	// task are counted above it.
	Told float64 `json:"told,omitempty"`
}

// sessionQuestion reports whether this is the checkpoint of a session question.
func (c *checkpoint) sessionQuestion() bool {
	return c.SessionQuestion && c.Era == mcp.Legacy.String() && len(c.Pending) == 1
}

// taskID is the server's name for the task that it has made of the call; "" until the name is known.
func (r *checkpointer) taskID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.Task == nil {
		return ""
	}
	return r.state.Task.ID
}

// noteHeard notes the furthest progress of a call that may become a task of the server.
func (r *checkpointer) noteHeard(n float64) {
	if r.state.Task != nil {
		r.amendCheckpoint(func(c *checkpoint) { c.Task.Told = max(c.Task.Told, n) })
	}
}
