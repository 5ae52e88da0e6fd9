package legacy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"taskgate/gateway/wire"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// answerStream makes the answer to one request resumable once it has taken resume_after (design.md 0.17): from then
// on each message is stored before it goes out, and has an id. Short answers cost the store nothing, and have
// no id, which would make a refused client try to resume (protocol.md C 7).
type answerStream struct {
	w      writer // belongs to whoever has the turn of x
	s      *session
	x      *wire.Exchange
	ctx    context.Context // has the patience of the request, and outlives it
	client context.Context // ends when the client goes, or has resumed the stream here
	cut    context.CancelFunc
	ended  chan struct{} // closed when the stream is over here
	id     jsonrpc.ID    // of the request it answers
	timer  *time.Timer   // nil for a resumed stream
	on     atomic.Bool   // the client can resume
	told   atomic.Bool   // the log says that the client has left
	left   bool          // this replica answers no more: the client has gone, and can resume; belongs to the handler

	missed [][]byte        // without log: the last message, after missingNote if the log lacks more; as w
	unsent map[string]bool // questions that may be in the log, and have yet to go out, by name; as w

	turn  work.Turn // for beginning the log, changing its note, and ending it, and for these two:
	over  bool
	about askNote // what the answer waits for
}

// leaveWait is how long an answer that goes on with a stream waits for the one before to leave it.
const leaveWait = time.Second

// beginLog runs on the timer, or earlier when the client is asked something.
func (l *answerStream) beginLog() {
	l.turn.Take()
	defer l.turn.Give()
	if l.over || l.on.Load() || !l.x.Streams() || l.x.Gone() {
		return // a client that has gone before the first id cannot resume
	}
	l.timer.Stop()
	ctx, cancel := l.s.table.withPatience(l.ctx)
	defer cancel()
	after, err := l.openStream(ctx)
	if err != nil {
		return // the answer goes out as if it were short
	}
	var first func(*eventstream.Writer) error
	if l.s.currentState().takesPriming() { // it begins the stream
		first = func(out *eventstream.Writer) error {
			l.w.out, l.w.no = out, after
			l.w.beginLog()
			return nil
		}
	}
	l.x.Resumable(l.sendKept, first)
}

// openStream makes this replica the one that keeps the stream. From then until the end of the stream is in the
// log, the table knows that it is written here: see endForgotten.
func (l *answerStream) openStream(ctx context.Context) (after int64, err error) {
	t := l.s.table
	t.mu.Lock()
	before := t.logs[l.w.name]
	t.logs[l.w.name] = l
	t.mu.Unlock()
	if before != nil && before != l { // beginLog tries again after the store was away
		before.cut()
		// What its handler has begun to write, such as that it was left, would end the log under this one. The end of
		// the handler wakes it, and the time does if that writes to a client that is gone.
		_ = work.PauseFor(ctx, before.ended, leaveWait)
	}
	after, err = t.store.Open(ctx, l.s.id, l.w.name, l.spellNote())
	l.on.Store(err == nil)
	return after, err
}

// isTaken reports whether another answer on this replica goes on with the stream: its client has resumed it, while
// the loss of the connection here may still be unnoticed.
func (l *answerStream) isTaken() bool {
	t := l.s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.logs[l.w.name] != nil && t.logs[l.w.name] != l
}

// sendKept puts a message of the exchange into the log, and sends it. Without log it reaches a client that is there,
// and the next message goes into the log behind it.
func (l *answerStream) sendKept(out *eventstream.Writer, message []byte) error {
	if l.isTaken() {
		return errTaken
	}
	l.w.out = out
	due := [][]byte{message}
	if l.missed != nil && loudEnough("warning", l.s.currentState().LogLevel) { // a client that resumes the stream misses those
		due = [][]byte{missingNote, message}
	}
	var no int64
	var err error
	for _, m := range due {
		if err == nil {
			no, err = l.w.putInLog(l.ctx, m)
		}
	}
	l.missed = nil
	switch {
	case errors.Is(err, errTaken):
		return err
	case err != nil:
		l.missed, l.w.state = due, withoutLog
		return l.w.sendEvent("", message)
	}
	return l.sendLogged(out, no, message)
}

// sendLogged sends a message that is in the log.
func (l *answerStream) sendLogged(out *eventstream.Writer, no int64, message []byte) error {
	l.w.out, l.w.state, l.w.no = out, logged, no
	return l.w.sendEvent(l.w.eventID(no), message)
}

// askOnStream asks a question on the stream if no other stream has it; see Logs.Ask. The stream can be resumed
// from then on.
func (l *answerStream) askOnStream(ctx context.Context, name, void string, message []byte) (holder string, has bool, err error) {
	l.beginLog()
	if !l.on.Load() || l.isTaken() {
		return "", false, errNoLog
	}
	ctx, cancel := l.s.table.withPatience(ctx)
	defer cancel()
	_ = l.x.Between(func(out *eventstream.Writer) error { // the client may be gone
		var no int64
		no, holder, has, err = l.s.table.store.Ask(ctx, l.s.id, l.w.name, l.w.name, name, void, message)
		delete(l.unsent, name)
		switch {
		case err != nil:
			l.unsent[name] = true
		case no != 0:
			return l.sendLogged(out, no, message)
		case holder == "":
			err = errTaken
		}
		return nil
	})
	return holder, has, err
}

// noteTask notes what the answer waits for, for the replica that resumes the stream.
func (l *answerStream) noteTask(n askNote) {
	l.turn.Take()
	defer l.turn.Give()
	if l.about == n {
		return
	}
	if l.about = n; l.on.Load() && !l.over {
		ctx, cancel := l.s.table.withPatience(l.ctx)
		defer cancel()
		_, _ = l.s.table.store.Note(ctx, l.s.id, l.w.name, l.spellNote()) // without the note it counts as any answer
	}
}

// noteLeft says that this replica has stopped answering.
func (l *answerStream) noteLeft() { l.left = true }

// finishStream says that the answer is complete, or given up. A client that missed a question which may be in
// the log counts as gone: other streams ask it.
func (l *answerStream) finishStream() {
	defer close(l.ended)
	defer l.cut()
	l.turn.Take()
	l.over = true
	note := l.spellNote()
	l.turn.Give()
	if l.timer != nil {
		l.timer.Stop()
	}
	if !l.on.Load() || l.isTaken() {
		l.forgetStream()
		return
	}
	t := l.s.table
	var last [][]byte
	if !l.left {
		last = l.missed
	}
	gone := l.x.Gone() || len(l.unsent) > 0
	t.closeLog(l.ctx, last, func(ctx context.Context, last [][]byte) bool {
		var over bool
		if l.left {
			over = l.isTaken() || t.store.Leave(ctx, l.s.id, l.w.name, note) == nil
		} else {
			over = t.endLog(ctx, l.s.id, l.w.name, last, gone)
		}
		if over {
			l.forgetStream()
		}
		return over
	})
}

// forgetStream says that this replica has stopped writing the stream.
func (l *answerStream) forgetStream() {
	t := l.s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.logs[l.w.name] == l {
		delete(t.logs, l.w.name)
	}
}

// closeLog attempts to end a log, with ctx for the first attempt and the last messages, which the log may lack.
// While the store is away it tries again each storeAgain, since the stream looks open until then. The messages are
// left out if there is no room for them.
func (t *Table) closeLog(ctx context.Context, last [][]byte, attempt func(ctx context.Context, last [][]byte) bool) {
	try := func(ctx context.Context) bool {
		ctx, cancel := t.withPatience(ctx)
		defer cancel()
		return attempt(ctx, last)
	}
	if try(ctx) {
		return
	}
	size := 0
	for _, m := range last {
		size += len(m)
	}
	t.mu.Lock()
	if t.most > 0 && t.late+size > t.most {
		last, size = nil, 0
	}
	t.late += size
	t.mu.Unlock()
	t.outlive(func() { // else other replicas end it when this one is gone
		for work.Pause(t.ctx, storeAgain) == nil && !try(context.Background()) {
			continue
		}
		t.mu.Lock()
		t.late -= size
		t.mu.Unlock()
	})
}

// endLog attempts once to end a stream, and reports whether that is done. It adds the last messages if the log
// lacks the last one: a client that has resumed the stream waits for it. The log has it if only the reply was
// lost.
func (t *Table) endLog(ctx context.Context, id, stream string, last [][]byte, gone bool) bool {
	if last != nil {
		there := false
		state, _, err := t.store.Since(ctx, id, stream, 0, func(_ int64, m []byte) { there = there || bytes.Equal(m, last[len(last)-1]) })
		for _, m := range last {
			if err == nil && !there && state != "ended" { // the stream may be forgotten
				_, err = t.store.Append(ctx, id, stream, m)
			}
		}
		if err != nil && !errors.Is(err, shim.ErrNotFound) { // the session may be, too
			return false
		}
	}
	return t.store.Finish(ctx, id, stream, gone) == nil
}

// writesSignal begins the signal that asks a replica whether it still writes a stream. The names of both
// follow.
const writesSignal = "writes "

// askKeeper has the replica that keeps a stream end it if it has stopped writing.
func (s *session) askKeeper(ctx context.Context, stream string, note []byte) {
	ctx, cancel := s.table.withPatience(ctx)
	defer cancel()
	_ = s.table.store.Signal(ctx, s.id, writesSignal+readNote(note).Keeper+" "+stream, "") // the next round tries again
}

// endForgotten ends a stream that is unwritten here though the store names this replica as its keeper: the
// store has come back as it was before the end of the stream.
func (t *Table) endForgotten(id, stream string) {
	if t.ending.TakeWithin(t.ctx) != nil { // one at a time, if several clients ask
		return
	}
	defer t.ending.Give()
	t.mu.Lock()
	written := t.logs[stream] != nil
	t.mu.Unlock()
	if written {
		return
	}
	ctx, cancel := t.withPatience(context.Background())
	defer cancel()
	var had [][]byte
	state, note, err := t.store.Since(ctx, id, stream, 0, func(_ int64, m []byte) { had = append(had, m) })
	if err != nil || state != "open" {
		return
	}
	for _, m := range lastWords(answerLost)(note, had) {
		if no, err := t.store.Append(ctx, id, stream, m); err != nil || no == 0 {
			return // the client asks again, or another replica keeps it
		}
	}
	_ = t.store.Finish(ctx, id, stream, true)
}

// logEntry is a message in the log of a stream.
type logEntry struct {
	no      int64
	message []byte
}

// readLog returns the messages that a stream of the session got after a number, and its state; see Logs.Since.
func (s *session) readLog(ctx context.Context, stream string, after int64) (all []logEntry, state string, note []byte, err error) {
	state, note, err = s.table.store.Since(ctx, s.id, stream, after, func(no int64, message []byte) {
		all = append(all, logEntry{no, message})
	})
	return all, state, note, err
}

// eventID spells the id of an event: its stream, since ids are unique in a session (X8), and its number.
func eventID(stream string, no int64) string { return stream + "." + strconv.FormatInt(no, 10) }

// parseEventID reads what a client gives back. ok says that the gateway may have made the id.
func parseEventID(id string) (stream string, no int64, ok bool) {
	stream, number, ok := strings.Cut(id, ".")
	no, err := strconv.ParseInt(number, 10, 64)
	return stream, no, ok && err == nil && no >= 0 && stream != ""
}

// askNote is, in the note of a log, the task that an answer waits for.
type askNote struct {
	Task  shim.ID `json:"task"`
	First bool    `json:"first,omitempty"` // the gateway's own tool waits
	Token string  `json:"token,omitempty"` // the client's progress token, as JSON
}

// spellNote makes the note of the log: the request, the replica that answers it, and its task. The caller has
// l.turn, or the only reference to the stream.
func (l *answerStream) spellNote() []byte {
	all := []byte("[" + l.id.Raw() + `,{"keeper":"` + l.s.table.name + `"}`)
	if l.about.Task != "" {
		b, _ := json.Marshal(l.about) // cannot fail
		all = append(append(all, ','), b...)
	}
	return append(all, ']')
}

// streamNote is what a note says of a stream.
type streamNote struct {
	request jsonrpc.ID // that is answered on it
	Keeper  string     // the replica that does
	askNote            // the task that is waited for, if it is one
}

// readNote reads what spellNote wrote. The note of another release may be empty to it.
func readNote(note []byte) (n streamNote) {
	var parts [3]json.RawMessage
	_ = json.Unmarshal(note, &parts)
	n.request, _ = jsonrpc.ParseID(parts[0])
	for _, part := range parts[1:] {
		_ = json.Unmarshal(part, &n)
	}
	return n
}

// lastWords makes the missing answer to the request of a stream: an error that says why.
func lastWords(why string) func(note []byte, had [][]byte) [][]byte {
	return func(note []byte, had [][]byte) [][]byte {
		id := readNote(note).request
		if id.IsZero() || slices.ContainsFunc(had, func(m []byte) bool { return isAnswer(m, id) }) {
			return nil
		}
		return [][]byte{jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: why})}
	}
}

// The errors for a stream that ended before its answer.
const (
	replicaLost = "the replica that ran this call was lost; the upstream may have finished the work"
	answerLost  = "the answer to this call was lost with the last changes of the gateway's store; the upstream may have finished the work"
)

// isAnswer reports whether a message is an answer to a request.
func isAnswer(message []byte, id jsonrpc.ID) bool {
	m, err := jsonrpc.Parse(message)
	return err == nil && (m.Kind == jsonrpc.Result || m.Kind == jsonrpc.ErrorResponse) && m.ID.Equal(id)
}
