package legacy

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/work"
	"taskgate/shim"
)

// getStream names the log of a session's GET stream.
const getStream = "get"

// errMoved says that the session's GET stream is at another replica.
var errMoved = errors.New("the session has a stream already")

// getHold is the GET stream of a session while this replica has it.
type getHold struct {
	end  context.CancelFunc // ends it
	gone chan struct{}      // closed when it has ended
	w    *writer            // nil until it has begun
	// unread are messages that were put into the log here and have yet to be read from there: a store that
	// comes back older has forgotten them.
	unread []logEntry
}

// holderPatience is how long the holder of a GET stream has to give a sign of life when another client wants to
// open one.
const holderPatience = 2 * time.Second

// attachGET makes the caller the session's one GET stream (X4); nil if another one is being read. A client that
// resumes the stream takes its place: the loss of its old connection may still be unnoticed.
func (s *session) attachGET(ctx context.Context, end context.CancelFunc, resumes bool) *getHold {
	ctx, cancel := s.table.withPatience(ctx)
	defer cancel()
	for {
		s.mu.Lock()
		before := s.get
		if before == nil {
			s.get = &getHold{end: end, gone: make(chan struct{})}
			defer s.mu.Unlock()
			return s.get
		}
		read, w := before.isRead(), before.w
		s.mu.Unlock()
		switch {
		case !read:
			w.out.Break()
		case !resumes:
			return nil
		}
		before.end()
		select {
		case <-before.gone:
		case <-ctx.Done():
			return nil
		}
	}
}

// isRead reports whether the client reads the stream. A stream that is about to begin counts as read. The
// caller holds session.mu.
func (h *getHold) isRead() bool { return h.w == nil || h.w.out.Blocked() < holderPatience }

// streamSignal begins the signal that asks the holder of the GET stream for a sign of life. A random text
// follows, which makes the holder's note a new one.
const streamSignal = "stream "

// sayHeld gives that sign of life if the stream here is read.
func (s *session) sayHeld(ask string) {
	s.mu.Lock()
	read := s.get != nil && s.get.isRead()
	s.mu.Unlock()
	if read {
		ctx, cancel := s.table.withPatience(s.ctx)
		defer cancel()
		_, _ = s.table.store.Note(ctx, s.id, getStream, s.holderNote(ask)) // otherwise the stream is taken over
	}
}

// holderLives reports whether the holder of the GET stream, whose note this is, gives a sign of life in time: a
// different note. It returns true while the store is away, so the stream stays where it is.
func (s *session) holderLives(ctx context.Context, before []byte) bool {
	wake, stop := s.watchLog()
	defer stop()
	if s.table.store.Signal(ctx, s.id, streamSignal+rand.Text(), "") != nil {
		return true
	}
	within, end := context.WithTimeout(ctx, holderPatience)
	defer end()
	for {
		state, note, err := s.table.store.State(ctx, s.id, getStream)
		switch {
		case err != nil:
			return true
		case state != "open":
			return false
		case !bytes.Equal(note, before):
			return true
		}
		// An event of the log wakes it, and it checks by itself four times. Then the stream is taken over.
		if work.PauseFor(within, wake, holderPatience/4) != nil && ctx.Err() == nil {
			return false
		}
	}
}

// noteBegun notes the writer of a stream that has begun.
func (s *session) noteBegun(hold *getHold, w *writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold.w = w
}

func (s *session) detachGET(hold *getHold) {
	s.mu.Lock()
	s.get, s.left = nil, time.Now()
	close(hold.gone)
	s.mu.Unlock()
	s.listen.reviewSoon()
}

// isAttached reports whether a GET stream is open here.
func (s *session) isAttached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get != nil
}

// timeDetached is how long no GET stream has been open here since a moment; 0 while one is open.
func (s *session) timeDetached(since time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.get != nil:
		return 0
	case s.left.After(since):
		since = s.left
	}
	return time.Since(since)
}

// readOther reads the note of the session's GET stream. ok is whether another replica holds it.
func (s *session) readOther(ctx context.Context) (note []byte, ok bool) {
	state, note, err := s.table.store.State(ctx, s.id, getStream)
	return note, err == nil && state == "open" && holderOf(note) != s.table.name
}

// isElsewhere reports whether another replica has the session's GET stream.
func (s *session) isElsewhere(ctx context.Context) bool {
	_, ok := s.readOther(ctx)
	return ok
}

// isHeardElsewhere reports whether another replica has the session's GET stream, and listens for these resources.
func (s *session) isHeardElsewhere(ctx context.Context, uris []string) bool {
	note, ok := s.readOther(ctx)
	return ok && listensFor(note, uris)
}

// holderNote is the note of the GET stream while this replica holds it: the name of the replica, the sign of
// life that ask wants, and a digest of the resources it listens for, so that another replica knows when a new
// subscription is heard.
func (s *session) holderNote(ask string) []byte {
	return []byte(s.table.name + "/" + ask + " " + s.listen.currentDigest())
}

// holderOf is the replica that a note names.
func holderOf(note []byte) string {
	name, _, _ := bytes.Cut(note, []byte(" "))
	name, _, _ = bytes.Cut(name, []byte("/"))
	return string(name)
}

// isUnheld reports whether a note is of a stream that only a message has made: the store came back older since
// the stream was opened.
func isUnheld(note []byte) bool { return len(note) == 0 }

// listensFor reports whether the replica that a note names listens for these resources.
func listensFor(note []byte, uris []string) bool {
	_, digest, _ := bytes.Cut(note, []byte(" "))
	return string(digest) == digestOf(uris)
}

// digestOf tells sets of resources apart. It is never empty.
func digestOf(uris []string) string {
	sum := sha256.Sum256([]byte(strings.Join(uris, "\n")))
	return hex.EncodeToString(sum[:16])
}

// atEnd stands for the unknown number of the newest message, as the last one that a client has.
const atEnd = -1

// openGET makes this replica the holder of the session's GET stream, and its writer. A client that resumes the stream
// takes it along. Any other client gets errMoved if a live holder has it, or goes on where the last stream was left.
// counts says that the client counts partial results. While the store is away the stream opens without a log.
func (s *session) openGET(ctx context.Context, no int64, resumes, counts bool) (*writer, error) {
	ctx, cancel := s.table.withPatience(ctx)
	defer cancel()
	w := &writer{s: s, name: getStream, asker: rand.Text(), no: no, in: make(chan delivery), resumed: resumes}
	state, note, err := s.table.store.State(ctx, s.id, getStream)
	if err == nil && !resumes && state == "open" && holderOf(note) != s.table.name {
		if s.holderLives(ctx, note) {
			return nil, errMoved
		}
		state, note, err = s.table.store.State(ctx, s.id, getStream)
	}
	if !resumes && (err != nil || state != "") {
		w.no = atEnd
	}
	if counts { // also while the log is away: its client gets no end of a task before the partial results
		w.count = newSeqFilter(nil, no, resumes, s.currentState().Tasks)
	}
	if err == nil {
		err = w.takeStream(ctx, state, note)
	}
	if err != nil {
		w.state = withoutLog
	}
	return w, nil
}

// takeStream takes a GET stream over from its last holder, and reads from its log how far the client is.
func (w *writer) takeStream(ctx context.Context, state string, note []byte) error {
	no, resumes, counts, store := w.no, w.resumed, w.count != nil, w.s.table.store
	last, err := store.Open(ctx, w.s.id, getStream, w.s.holderNote(""))
	if err != nil {
		return err
	}
	read, unknown := int64(0), false
	left, _ := strconv.ParseInt(string(note), 10, 64)
	switch {
	case resumes, no != atEnd:
		w.no = min(no, last) // the store may have come back older
	case state == "left" && left != atEnd:
		w.no, read = left, left
	default: // how far an earlier stream has come is unknown if it was not left: its replica or its end was lost
		w.no, read, unknown = last, last, state == "open"
	}
	log, _, _, err := w.s.readLog(ctx, getStream, read)
	if err != nil {
		return err
	}
	w.asked = questionsOf(log)
	w.lost = unknown || resumes && no > last || isMissing(log, w.no, counts && resumes)
	if w.lost && counts {
		log = slices.DeleteFunc(log, func(m logEntry) bool { return m.no <= w.no })
		w.resumed = false // it begins anew
	}
	if counts {
		w.count = newSeqFilter(log, no, w.resumed, w.s.currentState().Tasks)
		if !w.resumed {
			last, err = store.Append(ctx, w.s.id, getStream, anewMark)
		}
		w.count.last = last
	}
	if err != nil {
		return err
	}
	if w.resumed {
		for _, m := range log {
			w.noteEnd(m.message)
		}
	}
	if resumes {
		w.state = logged
	}
	return nil
}

// reopenLog begins the log of a stream that is open without one. over is whether the stream is to end: the log
// has what its client lacks, or the client counts partial results.
func (w *writer) reopenLog(ctx context.Context) (over bool) {
	ctx, cancel := w.s.table.withPatience(ctx)
	defer cancel()
	state, note, err := w.s.table.store.State(ctx, w.s.id, getStream)
	if err != nil || state == "open" && holderOf(note) != w.s.table.name && !isUnheld(note) {
		w.moved = err == nil
		return false
	}
	last, err := w.s.table.store.Open(ctx, w.s.id, getStream, w.s.holderNote(""))
	if err != nil || w.state != withoutLog {
		return false
	}
	if w.state = plain; w.resumed {
		return true // from where its client was
	}
	w.no = last
	if w.count == nil && !time.Now().Before(w.resumeAt) { // its messages were to have ids by now
		w.beginLog()
	}
	return w.count != nil
}

// leaveStream gives the stream up, so that the next one goes on where it is. It does so also for a stream whose
// log failed to open: perhaps only the reply was lost.
func (w *writer) leaveStream() {
	if w.moved {
		return
	}
	t, id, note, begun := w.s.table, w.s.id, strconv.AppendInt(nil, w.no, 10), false
	t.closeLog(context.Background(), nil, func(ctx context.Context, _ [][]byte) bool {
		if begun && t.isAttached(id) { // the next one is here
			return true
		}
		begun = true
		return t.store.Leave(ctx, id, getStream, note) == nil
	})
}

// postMessage sends a message to the client of the session: on its GET stream, on any replica, or on the next
// one. While the store is away it goes out on the stream that is here.
func (s *session) postMessage(message []byte) {
	ctx, cancel := s.table.withPatience(s.ctx)
	defer cancel()
	if no, err := s.table.store.Post(ctx, s.id, getStream, message); err == nil && no != 0 {
		s.keepUnread(no, message)
		return
	}
	s.mu.Lock()
	var w *writer
	if s.get != nil {
		w = s.get.w
	}
	s.mu.Unlock()
	if w != nil {
		ctx, cancel := s.table.withPatience(s.ctx)
		defer cancel()
		_ = w.sendMessages(ctx, false, message) // a client that does not read misses it
	}
}

// listenHere listens for the session's current subscriptions at the replica with its GET stream. If that is
// another one, here is false, and agreed is unknown.
func (s *session) listenHere(ctx context.Context, up upstream.Client) (agreed shim.Filter, here bool, err error) {
	if !s.isAttached() && s.isElsewhere(ctx) {
		s.awaitListening(ctx)
		return shim.Filter{}, false, nil
	}
	agreed, err = s.listen.startListening(ctx, up)
	return agreed, true, err
}

// awaitListening waits until the replica with the GET stream listens for the session's current subscriptions:
// changes upstream reach the client from then on. It gives up after listenReady.
func (s *session) awaitListening(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listenReady)
	defer cancel()
	wake, stop := s.watchLog()
	defer stop()
	for {
		st, err := s.loadState(ctx)
		if err == nil {
			state, note, err := s.table.store.State(ctx, s.id, getStream)
			if err == nil && (state != "open" || listensFor(note, st.Subscriptions)) {
				return
			}
		}
		// An event of the log wakes it: the replica with the stream changes its note. After listenReady the caller goes
		// on.
		select {
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}
