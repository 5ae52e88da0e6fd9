package legacy

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/wire"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// eventLog makes the answer to one request resumable, once it has taken long enough
// to be worth it (design.md 0.17): from then on each message is in the store before
// it goes out, and has an id. Short answers cost the store nothing, and have no ids,
// which would make a client that is refused try to resume (protocol.md C 7).
type eventLog struct {
	s       *session
	x       *wire.Exchange
	version string
	ctx     context.Context // has the patience of the request, and does not end with it
	id      jsonrpc.ID      // of the request it answers
	stream  string
	asked   map[string]bool        // questions that its client was asked before it was resumed
	timer   *time.Timer            // nil where it is resumed
	on      atomic.Bool            // the client can resume
	taken   atomic.Bool            // another answer on this replica goes on with the stream
	unkept  atomic.Pointer[[]byte] // the last message, if the log does not have it

	mu     sync.Mutex
	over   bool
	unsent map[string]bool // questions that may be in the log, and have not gone out, by name
	left   bool            // nobody answers here any more: the client has gone, and can resume
	about  askNote         // what the answer waits for
	cut    func()          // gives an answer up that waits for a task; nil for others
	gone   chan struct{}   // closed when the stream is over here
}

// newLog makes the log of the answer to a request, which goes out on a stream.
func newLog(ctx context.Context, q *request, x *wire.Exchange, stream string) *eventLog {
	return &eventLog{
		s: q.s, x: x, version: q.state.Version, ctx: context.WithoutCancel(ctx), stream: stream, id: q.msg.ID,
		unsent: make(map[string]bool), gone: make(chan struct{}),
	}
}

// startLog begins to count the time of an answer to a request.
func startLog(ctx context.Context, q *request, x *wire.Exchange, after time.Duration) *eventLog {
	l := newLog(ctx, q, x, rand.Text()[:16])
	l.mu.Lock() // the timer must not see a half-made log
	l.timer = time.AfterFunc(after, l.begin)
	l.mu.Unlock()
	return l
}

// begin runs on the timer, or before that when the client is asked something. A client of
// 2025-11-25 gets an event at once from which it can resume; older ones choke on an event
// without data, and get ids as messages come (X9, H8).
func (l *eventLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.on.Load() || !l.x.Streams() || l.x.Gone() {
		return // a client that has gone without an id has nothing to resume from
	}
	l.timer.Stop()
	ctx, cancel := l.s.table.within(l.ctx)
	defer cancel()
	after, err := l.s.table.store.Open(ctx, l.s.id, l.stream, noteOf(l.id, l.about))
	if err != nil {
		return // the answer goes out as if it were short
	}
	l.on.Store(true)
	var first func(*eventstream.Writer) error
	if mcp.LookupVersion(l.version).Priming { // it begins the stream
		first = func(out *eventstream.Writer) error { return l.prime(out, after) }
	}
	l.x.Resumable(l.keep, first)
}

// prime sends an event from which the client can resume, if its version has such events.
func (l *eventLog) prime(out *eventstream.Writer, after int64) error {
	if !mcp.LookupVersion(l.version).Priming {
		return nil
	}
	return out.Prime(eventID(l.stream, after), wire.ResumeRetry)
}

// errTaken: this replica does not keep the stream any more.
var errTaken = errors.New("another replica has the stream, or has ended it")

// keep stores a message and returns its event id, "" where it has none.
func (l *eventLog) keep(message []byte) (string, error) {
	if l.taken.Load() {
		return "", errTaken
	}
	ctx, cancel := l.s.table.within(l.ctx)
	defer cancel()
	no, err := l.s.table.store.Append(ctx, l.s.id, l.stream, message)
	l.unkept.Store(nil)
	switch {
	case err != nil:
		l.unkept.Store(&message)
		return "", nil // it reaches a client that is there
	case no == 0:
		return "", errTaken
	}
	return eventID(l.stream, no), nil
}

// ask asks a question on the stream, unless another one has it; see Logs.Ask. From then on
// the stream can be resumed.
func (l *eventLog) ask(ctx context.Context, name, void string, message []byte) (holder string, has bool, err error) {
	l.begin()
	if !l.on.Load() {
		return "", false, errNoLog
	}
	ctx, cancel := l.s.table.within(ctx)
	defer cancel()
	var no int64
	_ = l.x.SendKept(message, func([]byte) (string, error) { // the client may be gone
		no, holder, has, err = l.s.table.store.Ask(ctx, l.s.id, l.stream, l.stream, name, void, message)
		if err == nil && no == 0 && holder == "" {
			err = errTaken
		}
		if no == 0 {
			return "", errTaken
		}
		return eventID(l.stream, no), nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unsent, name)
	if err != nil && !errors.Is(err, errTaken) {
		l.unsent[name] = true
	}
	return holder, has, err
}

// tells notes what the answer waits for, for whoever goes on with the stream.
func (l *eventLog) tells(n askNote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.about == n {
		return
	}
	if l.about = n; l.on.Load() && !l.over {
		ctx, cancel := l.s.table.within(l.ctx)
		defer cancel()
		_, _ = l.s.table.store.Note(ctx, l.s.id, l.stream, noteOf(l.id, n)) // else it is as any answer
	}
}

// waits says that the answer only waits for a task. Any replica can give it, so it is given
// up where the client goes; cut does that.
func (l *eventLog) waits(n askNote, cut func()) {
	l.tells(n)
	l.mu.Lock()
	l.cut = cut
	l.mu.Unlock()
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.waits == nil {
		l.s.waits = make(map[string]*eventLog)
	}
	l.s.waits[l.stream] = l
}

// displace ends the answer on a stream here that its client resumes: that it has lost the
// connection may not have been noticed yet.
func (s *session) displace(ctx context.Context, stream string) {
	s.mu.Lock()
	l := s.waits[stream]
	s.mu.Unlock()
	if l == nil {
		return
	}
	l.taken.Store(true)
	l.cut()
	// The handler of the answer wakes it; the caller goes on after its timeout, for that one answers no more.
	select {
	case <-l.gone:
	case <-ctx.Done():
	}
}

// leave says that nobody answers here any more.
func (l *eventLog) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
}

// finish says that the answer is complete, or given up. A client that was not sent all
// questions which may be in the log counts as gone: other streams ask it.
func (l *eventLog) finish() {
	l.mu.Lock()
	l.over = true
	left, note, unsent := l.left, noteOf(l.id, l.about), len(l.unsent) > 0
	l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	defer l.forget()
	switch {
	case !l.on.Load(), l.taken.Load():
	case left:
		l.s.table.closeLog(l.ctx, 0, func(ctx context.Context, _ bool) bool {
			return l.taken.Load() || l.s.table.store.Leave(ctx, l.s.id, l.stream, note) == nil
		})
	default:
		var last []byte
		if m := l.unkept.Load(); m != nil {
			last = *m
		}
		l.s.table.finishLog(l.ctx, l.s.id, l.stream, last, l.x.Gone() || unsent)
	}
}

// forget says that the stream is over here.
func (l *eventLog) forget() {
	l.s.mu.Lock()
	if l.s.waits[l.stream] == l {
		delete(l.s.waits, l.stream)
	}
	l.s.mu.Unlock()
	close(l.gone)
}

// lateBytes bounds the messages that wait for the store, to end logs with.
const lateBytes = 64 << 20

// finishLog says that nothing more comes on a stream, after its last message if the log
// does not have that: a client that has resumed it waits. A message for which there is no
// room while the store is away is left out.
func (t *Table) finishLog(ctx context.Context, id, stream string, last []byte, gone bool) {
	t.closeLog(ctx, len(last), func(ctx context.Context, room bool) bool {
		if !room {
			last = nil
		}
		return t.endLog(ctx, id, stream, last, gone)
	})
}

// closeLog attempts to end a log. While the store is away it goes on trying, since the
// stream looks open until then. room says whether so many bytes may wait for that. ctx is for
// the first attempt.
func (t *Table) closeLog(ctx context.Context, bytes int, attempt func(ctx context.Context, room bool) bool) {
	try := func(ctx context.Context, room bool) bool {
		ctx, cancel := t.within(ctx)
		defer cancel()
		return attempt(ctx, room)
	}
	if try(ctx, true) {
		return
	}
	t.mu.Lock()
	room := t.late+bytes <= lateBytes
	if !room {
		bytes = 0
	}
	t.late += bytes
	t.mu.Unlock()
	t.outlive(func() { // else it is found out when this replica is gone
		for work.Pause(t.ctx, storeAgain) == nil && !try(context.Background(), room) {
			continue
		}
		t.mu.Lock()
		t.late -= bytes
		t.mu.Unlock()
	})
}

// endLog is one attempt, and reports whether it is the last one needed. The message may be
// there already: only the reply was lost.
func (t *Table) endLog(ctx context.Context, id, stream string, last []byte, gone bool) bool {
	if last != nil {
		there := false
		state, _, err := t.store.Since(ctx, id, stream, 0, func(_ int64, m []byte) { there = there || bytes.Equal(m, last) })
		if err == nil && !there && state != "" && state != "ended" {
			_, err = t.store.Append(ctx, id, stream, last)
		}
		if err != nil {
			return false
		}
	}
	return t.store.Finish(ctx, id, stream, gone) == nil
}

// logEntry is a message in the log of a stream.
type logEntry struct {
	no      int64
	message []byte
}

// logged are the messages that a stream of the session got after a number, and what has
// become of it; see Logs.Since.
func (s *session) logged(ctx context.Context, stream string, after int64) (all []logEntry, state string, note []byte, err error) {
	state, note, err = s.table.store.Since(ctx, s.id, stream, after, func(no int64, message []byte) {
		all = append(all, logEntry{no, message})
	})
	return all, state, note, err
}

// eventID spells the id of an event: its stream, since ids are unique in a session
// (X8), and its number.
func eventID(stream string, no int64) string { return stream + "." + strconv.FormatInt(no, 10) }

// parseEventID reads what a client gives back. What is no id of ours says nothing.
func parseEventID(id string) (stream string, no int64, ok bool) {
	stream, number, ok := strings.Cut(id, ".")
	no, err := strconv.ParseInt(number, 10, 64)
	return stream, no, ok && err == nil && no >= 0 && stream != ""
}

// askNote is, in the note of a log, the task that an answer waits for.
type askNote struct {
	Task  shim.ID `json:"task"`
	First bool    `json:"first,omitempty"` // it is the gateway's own tool that waits
	Token string  `json:"token,omitempty"` // the client's progress token, as JSON
}

// noteOf is what the log says of a request that has no answer yet, and of its task.
func noteOf(id jsonrpc.ID, n askNote) []byte {
	all := []byte("[" + id.Raw())
	if n.Task != "" {
		b, _ := json.Marshal(n) // cannot fail
		all = append(append(all, ','), b...)
	}
	return append(all, ']')
}

// readAskNotes are the tasks that ask on a stream, by its note.
func readAskNotes(note []byte) (asking []askNote) {
	var raw []json.RawMessage
	_ = json.Unmarshal(note, &raw) // of another release: then it names none
	for _, r := range raw {
		var n askNote
		if json.Unmarshal(r, &n) == nil && n.Task != "" {
			asking = append(asking, n)
		}
	}
	return asking
}

// noted are the requests that noteOf has named.
func noted(note []byte) []jsonrpc.ID {
	var raw []json.RawMessage
	_ = json.Unmarshal(note, &raw) // of another release: then it names none
	var ids []jsonrpc.ID
	for _, r := range raw {
		if id, err := jsonrpc.ParseID(r); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
