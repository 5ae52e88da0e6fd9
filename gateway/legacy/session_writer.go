package legacy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// errNoLog ends a stream whose next message needs the log while that is away.
var errNoLog = errors.New("the log of the stream is not available")

// writer writes one event stream of a session that its client can resume: it puts messages into the log of the
// stream, and sends what the log has more than the client. It belongs to the goroutine of writeUntilEnd. Other
// goroutines hand it messages by sendMessages.
type writer struct {
	s    *session
	name string // of the stream, in its log and in the ids of its events
	out  *eventstream.Writer
	// asker tells the client on this connection from earlier clients of the stream
	asker string
	no    int64            // of the last message of the log that was sent or left out
	in    chan delivery    // from other goroutines; nil if there are none
	long  <-chan time.Time // when messages begin to have ids; nil if they have them

	kept    bool // messages go through the log, and have ids
	primed  bool // the client has had an event on this connection to resume from
	logless bool // the store was away when the stream began
	resumed bool // the client has been on the stream before, and says how far it came
	moved   bool // another replica has taken it

	lost   bool            // the client is to hear that messages may be missing
	asked  map[string]bool // questions that the client has, or gets from the log, by name
	ended  []shim.ID       // tasks of whose end the client is told on this stream, or was before it resumed that
	count  *seqFilter      // nil if the client takes no partial results
	replay *replay         // for what is in the log already; nil once that has been sent
}

// isHeld reports whether this replica holds the stream: it is the GET stream. Of other streams the writer reads
// the log.
func (w *writer) isHeld() bool { return w.name == getStream }

// delivery are messages for a stream.
type delivery struct {
	messages [][]byte
	logged   bool       // they go out through the log only
	done     chan error // gets what became of them
}

// sendMessages hands messages to the writer, and waits until they are out: in the log, from which the client
// gets them, or sent.
func (w *writer) sendMessages(ctx context.Context, logged bool, messages ...[]byte) error {
	d := delivery{messages, logged, make(chan error, 1)}
	select {
	case w.in <- d:
		return <-d.done
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// askOnStream puts a question into the log unless another stream has it; see Logs.Ask. The stream is kept in
// the log from then on: the stream after it learns there what its client was asked.
func (w *writer) askOnStream(ctx context.Context, name, void string, message []byte) (holder string, has bool, err error) {
	if err := w.sendMessages(ctx, true); err != nil {
		return "", false, err
	}
	no, holder, has, err := w.s.table.store.Ask(ctx, w.s.id, w.name, w.asker, name, void, message)
	if err == nil && no == 0 && holder == "" {
		err = errTaken
	}
	if no != 0 {
		w.s.keepUnread(no, message)
	}
	return holder, has, err
}

// writeUntilEnd writes until the stream is over, the client goes, or ctx or the session ends. It reads the log
// after each event and at each check. over gets the state of the stream, and says whether that is the end; it
// is called while the store is there. For a stream without a log it is called each second.
func (w *writer) writeUntilEnd(ctx context.Context, check time.Duration, over func(state string, note []byte) bool) error {
	wake, stop := w.s.watchLog(ctx)
	defer stop()
	tick := time.NewTicker(check)
	defer tick.Stop()
	for {
		state, note, err := w.catchUp(ctx)
		switch {
		case w.moved:
			return errMoved
		case w.out.Err() != nil:
			return w.out.Err()
		case ctx.Err() != nil, err == nil && over(state, note):
			return nil
		}
		var again <-chan time.Time
		if w.logless {
			again = time.After(storeAgain)
		}
		// An event of the session's log or record wakes it, and a message from another goroutine; it checks by
		// itself each check.
		select {
		case <-wake:
		case <-tick.C:
		case <-again:
		case <-w.long:
			w.beginLog()
		case d := <-w.in:
			err := w.deliverMessages(ctx, d)
			if d.done <- err; err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-w.s.ctx.Done():
			return nil
		}
	}
}

// beginLog gives messages ids from now on, and sends them through the log: the stream has been open for long
// enough that its client may want to resume it (design.md 0.17).
func (w *writer) beginLog() {
	w.long = nil
	if w.logless || w.kept {
		return
	}
	w.kept = true
	w.sendPriming()
}

// sendPriming gives the client an event to resume from before the first message, so that the connection of a
// client that resumes may break more than once.
func (w *writer) sendPriming() {
	w.primed = true
	if id := w.eventID(w.no); id != "" && w.s.currentState().takesPriming() {
		_ = w.out.Prime(id) // its error is in out
	}
}

// deliverMessages sends messages, or puts them into the log, from which they are sent next.
func (w *writer) deliverMessages(ctx context.Context, d delivery) error {
	if d.logged {
		w.beginLog()
	}
	for _, m := range d.messages {
		w.noteEnd(m)
		if w.appendMessage(ctx, m) {
			continue
		}
		// A client without an event id begins anew on its next stream: its partial results need no log.
		if d.logged && !(w.logless && !w.resumed) {
			return errNoLog
		}
		w.sendMore(ctx, w.takeUnread(), nil) // in order
		if err := w.out.Send("", m); err != nil {
			return err
		}
	}
	return w.out.Err()
}

// appendMessage puts a message into the log of the stream, and reports whether it is there.
func (w *writer) appendMessage(ctx context.Context, message []byte) bool {
	if !w.kept {
		return false
	}
	ctx, cancel := w.s.table.withPatience(ctx)
	defer cancel()
	no, err := w.s.table.store.Append(ctx, w.s.id, w.name, message)
	if err != nil || no == 0 {
		return false
	}
	w.s.keepUnread(no, message)
	return true
}

// catchUp sends what the log has more than the client, and returns the state of the stream.
func (w *writer) catchUp(ctx context.Context) (state string, note []byte, err error) {
	if w.logless {
		w.sendMore(ctx, w.takeUnread(), nil)
		return "open", nil, nil
	}
	unread := w.takeUnread()
	within, cancel := w.s.table.withPatience(ctx)
	defer cancel()
	more, state, note, err := w.s.readLog(within, w.name, w.no)
	if err == nil && w.isHeld() && state != "" && holderOf(note) != w.s.table.name {
		if w.moved = !isUnheld(note); w.moved { // the other one sends what is in the log
			return state, note, errMoved
		}
		state = "" // it is to be opened again
	}
	w.sendMore(ctx, unread, more)
	if err == nil {
		w.replay = nil
		if w.kept && !w.primed && state == "open" {
			w.sendPriming()
		}
	}
	return state, note, err
}

// sendMore sends what the log has more than the client, and those unread messages that were put into it here
// and are missing from more.
func (w *writer) sendMore(ctx context.Context, unread, more []logEntry) {
	for _, u := range unread {
		same := func(m logEntry) bool { return m.no == u.no }
		if u.no > w.no && !slices.ContainsFunc(more, same) {
			more = append(more, u)
		}
	}
	slices.SortStableFunc(more, func(a, b logEntry) int { return cmp.Compare(a.no, b.no) })
	merged := make(map[string]bool) // waiting changes of a list are sent once
	for _, m := range more {
		// The holder of the stream keeps what it has put into the log, and claimGET knows of earlier losses.
		w.lost = w.lost || m.message == nil && !w.isHeld()
		method, change := listChange(m.message)
		if change && merged[method] || !w.isDue(ctx, m) {
			w.no = m.no
			continue
		}
		w.sayMissing()
		if w.out.Send(w.eventID(m.no), m.message) == nil {
			w.no, merged[method], w.primed = m.no, true, true
		}
	}
	w.sayMissing()
}

// sayMissing tells a client that wants warnings that messages may be missing here, if that is so.
func (w *writer) sayMissing() {
	if w.lost && loudEnough("warning", w.s.currentState().LogLevel) {
		_ = w.out.Send("", missingNote) // its error is in out
	}
	w.lost = false
}

// missingNote says that messages may be missing in a stream.
var missingNote = jsonrpc.AppendNotification(nil, mcp.NotifyMessage, []byte(`{"level":"warning","logger":"taskgate",`+
	`"data":"messages may be missing here: the store of the gateway was away, or has come back as it was before them"}`))

// isMissing reports whether messages may be missing in a log after a number. For a client that counts, every
// gap since it began to count matters: how far it has come is unknown then.
func isMissing(log []logEntry, after int64, counts bool) bool {
	missing := false
	for _, m := range log {
		switch {
		case m.message == nil:
			missing = missing || m.no > after || counts
		case len(m.message) == 0: // the mark
			missing = false
		}
	}
	return missing
}

// mostUnread and unreadBytes bound the messages that are kept for a client that reads slowly.
const (
	mostUnread  = 100
	unreadBytes = 256 << 10
)

// keepUnread keeps a message of the GET stream until the stream has sent it, or newer ones need its room.
func (s *session) keepUnread(no int64, message []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.get
	if h == nil {
		return
	}
	h.unread = append(h.unread, logEntry{no, message})
	size := 0
	for i, u := range slices.Backward(h.unread) {
		if size += len(u.message); size > unreadBytes || len(h.unread)-i > mostUnread {
			h.unread = slices.Clone(h.unread[i+1:])
			return
		}
	}
}

// takeUnread returns the messages of keepUnread. A client that has resumed its stream without the log gets them
// from the log, in order.
func (w *writer) takeUnread() []logEntry {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	h := w.s.get
	if h == nil || h.w != w || w.logless && w.resumed { // another stream, or too early
		return nil
	}
	unread := h.unread
	h.unread = nil
	return unread
}

// listChange reports whether a message tells of a change of a list. A second such message adds nothing to an
// unread first one. Any other message may be meant twice.
func listChange(message []byte) (method string, ok bool) {
	method, _ = jsonrpc.GetString(message, "method")
	switch method {
	case mcp.NotifyToolsListChanged, mcp.NotifyPromptsListChanged, mcp.NotifyResourcesListChanged:
		return method, true
	}
	return method, false
}

// isDue reports whether a message of the log is to be sent.
func (w *writer) isDue(ctx context.Context, m logEntry) bool {
	return len(m.message) > 0 && (w.replay == nil || !w.replay.isStale(ctx, m.message)) && w.count.isDue(m.no, m.message)
}

// eventID is the id of the event with a message of the log; "" for none. On a stream whose client counts and
// begins anew, messages before the mark have no id: a client that resumed there would count as the earlier
// client, which has had more.
func (w *writer) eventID(no int64) string {
	if !w.kept || w.count != nil && !w.resumed && no < w.count.last {
		return ""
	}
	return eventID(w.name, no)
}

// watchLog signals wake at each possible change of the log or the state of the session, until stop is called.
func (s *session) watchLog(ctx context.Context) (wake <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	woken, done := make(chan struct{}, 1), make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		s.table.store.Watch(ctx, s.id, func() { work.Signal(woken) })
	}()
	return woken, func() {
		cancel()
		<-done
	}
}

// resumeCheck is how often a resumed stream checks whether its replica lives.
const resumeCheck = 5 * time.Second
