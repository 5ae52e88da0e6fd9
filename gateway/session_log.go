package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

const (
	// logTimeout is how long the log may hold up a message.
	logTimeout = 5 * time.Second
	// resumeRetry is when a client whose stream broke may come back.
	resumeRetry = time.Second
)

// eventLog makes the answer to one request resumable, once it has taken long enough
// to be worth it (design.md 0.17): from then on each message is in the store before
// it goes out, and has an id. Short answers cost the store nothing, and have no ids,
// which would make a client that is refused try to resume (protocol.md C 7).
type eventLog struct {
	s       *session
	x       *exchange
	version string
	waiting []jsonrpc.ID // the request it answers
	asking  []askNote    // the tasks that ask on it, or are streamed
	stream  string
	timer   *time.Timer
	on      atomic.Bool            // the client can resume
	unkept  atomic.Pointer[[]byte] // the last message, if the log does not have it

	mu   sync.Mutex
	over bool
}

// startLog begins to count the time of an answer to a request.
func startLog(s *session, x *exchange, version string, after time.Duration, id jsonrpc.ID) *eventLog {
	l := &eventLog{s: s, x: x, version: version, stream: rand.Text()[:16], waiting: []jsonrpc.ID{id}}
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
	if l.over || l.on.Load() || !l.x.accept.stream || l.x.r.Context().Err() != nil {
		return // a client that has gone without an id has nothing to resume from
	}
	l.timer.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	after, err := l.s.table.store.Open(ctx, l.s.id, l.stream, l.note())
	if err != nil {
		return // the answer goes out as if it were short
	}
	l.on.Store(true)
	prime := ""
	if mcp.LookupVersion(l.version).Priming {
		prime = eventID(l.stream, after)
	}
	l.x.resumable(l.keep, prime)
}

// errTaken: another replica has ended the stream, which took this one for lost.
var errTaken = errors.New("another replica has ended the stream")

// keep stores a message and returns its event id, "" where it has none.
func (l *eventLog) keep(message []byte) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
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

// pushes says that the answer streams a task: if this replica is lost, the client is told
// where the rest is.
func (l *eventLog) pushes(id shim.ID) {
	l.asks(askNote{Task: id, Streams: true})
	l.begin()
}

// asks says that a task asks on the stream: whoever resumes that is asked there.
func (l *eventLog) asks(n askNote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.asking, func(a askNote) bool { return a.Task == n.Task }) {
		return
	}
	l.asking = append(l.asking, n)
	l.renote()
}

// note is what whoever finds the stream without this replica has to know. l.mu is held.
func (l *eventLog) note() []byte { return noteOf(l.waiting, l.asking...) }

// renote has the log say so, if it has begun. l.mu is held.
func (l *eventLog) renote() {
	if l.on.Load() && !l.over {
		ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
		defer cancel()
		_, _ = l.s.table.store.Note(ctx, l.s.id, l.stream, l.note()) // else nobody is asked where the stream is resumed
	}
}

// finish says that the answer is complete.
func (l *eventLog) finish() {
	l.timer.Stop()
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	if !l.on.Load() {
		return
	}
	var last []byte
	if m := l.unkept.Load(); m != nil {
		last = *m
	}
	l.s.table.finishLog(l.s.id, l.stream, last)
}

// lateBytes bounds the messages that wait for the store, to end logs with.
const lateBytes = 64 << 20

// finishLog says that nothing more comes on a stream, after its last message if the log
// does not have that. While the store is away it goes on trying: the stream looks open
// until then, and a client that has resumed it waits. A message for which there is no room
// is left out.
func (t *sessionTable) finishLog(id, stream string, last []byte) {
	if t.endLog(id, stream, last) {
		return
	}
	t.mu.Lock()
	if t.late+len(last) > lateBytes {
		last = nil
	}
	t.late += len(last)
	t.mu.Unlock()
	t.outlive(func() { // else it is found out when this replica is gone
		for rest(t.ctx, storeAgain) && !(stream == standingStream && t.attached(id)) && !t.endLog(id, stream, last) {
			continue
		}
		t.mu.Lock()
		t.late -= len(last)
		t.mu.Unlock()
	})
}

// endLog is one attempt, and reports whether it is the last one needed. The message may be
// there already: only the reply was lost.
func (t *sessionTable) endLog(id, stream string, last []byte) bool {
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
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
	return t.store.Finish(ctx, id, stream) == nil
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

// askNote is, in the note of a log, a task whose questions are asked on the stream.
type askNote struct {
	Task    shim.ID `json:"task"`
	First   bool    `json:"first,omitempty"`   // they are not left to the GET stream
	Streams bool    `json:"streams,omitempty"` // the stream has the blocks of its result
}

// noteOf is what the log says of requests that have no answer yet, and of tasks that ask.
func noteOf(ids []jsonrpc.ID, asking ...askNote) []byte {
	var all [][]byte
	for _, id := range ids {
		all = append(all, []byte(id.Raw()))
	}
	for _, n := range asking {
		b, _ := json.Marshal(n) // cannot fail
		all = append(all, b)
	}
	return append(append([]byte{'['}, bytes.Join(all, []byte{','})...), ']')
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
