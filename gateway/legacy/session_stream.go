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

// A stream of a session has one writer. It is in one of three states:
//
//	state      | a message                                        | the state after it
//	-----------|--------------------------------------------------|--------------------------------------------
//	plain      | goes out at once, without an id                  | logged: after resume_after, or with the first
//	           |                                                  | message that has to be in the log
//	logged     | is put into the log, and goes out from there     | withoutLog: the store has not taken a message
//	           | with an id, from which the client can resume     |
//	withoutLog | goes out at once, without an id                  | logged: the store is back. An answer tries it
//	           |                                                  | with each message, a GET stream each second
//
// Two kinds of streams differ in where messages come from, and in their end:
//
//	stream     | source                                           | end
//	-----------|--------------------------------------------------|--------------------------------------------
//	answer     | the exchange of a request (answerStream); for a  | the answer
//	           | client that has resumed it, also the log alone   |
//	GET stream | the log, and sendMessages of those who listen,   | its client goes, the session ends, or another
//	           | follow tasks, or ask                             | replica takes it
//
// A client resumes either kind from the id that it has: sendRest sends what the log has more, without questions that are
// settled, or else an event to resume from.
type streamState int

const (
	plain streamState = iota
	logged
	withoutLog
)

// errNoLog ends a stream whose next message needs the log while that is away.
var errNoLog = errors.New("the log of the stream is not available")

// errBehind ends a stream whose client counts partial results, and may have missed some: it begins anew with the next one.
var errBehind = errors.New("messages may be missing")

// errTaken says that another replica keeps the stream, or has ended it.
var errTaken = errors.New("another replica has the stream, or has ended it")

// writer writes one stream of a session. That of a GET stream belongs to the goroutine of writeUntilEnd; others hand
// it messages by sendMessages. That of an answer belongs to whoever has the turn of the exchange.
type writer struct {
	s     *session
	name  string              // of the stream, in its log and in the ids of its events
	out   *eventstream.Writer // nil if the client of an answer went before there was one
	state streamState
	no    int64 // of the last message of the log that was sent or left out

	resumed bool        // the client has been on the stream before, and says how far it came
	replay  *replay     // for what is in the log already; nil once that has been sent
	asked   []*question // what the client is asked already, or by the log
	lost    bool        // the client is to hear that messages may be missing

	// The following are of a GET stream.

	asker    string        // tells the client on this connection from earlier clients of the stream
	in       chan delivery // from other goroutines
	resumeAt time.Time     // when messages begin to have ids
	moved    bool          // another replica has taken it
	ended    []shim.ID     // tasks of whose end the client is told on this stream, or was before it resumed that
	count    *seqFilter    // nil if the client takes no partial results
}

// isHeld reports whether this replica holds the stream: it is the GET stream. Of other streams the writer reads
// the log.
func (w *writer) isHeld() bool { return w.name == getStream }

// putInLog puts a message into the log of the stream. It fails with errNoLog if the store did not take it, and with
// errTaken.
func (w *writer) putInLog(ctx context.Context, message []byte) (no int64, err error) {
	ctx, cancel := w.s.table.withPatience(ctx)
	defer cancel()
	switch no, err = w.s.table.store.Append(ctx, w.s.id, w.name, message); {
	case err != nil:
		return 0, errNoLog
	case no == 0:
		return 0, errTaken
	}
	return no, nil
}

// delivery are messages for a GET stream.
type delivery struct {
	messages [][]byte
	inLog    bool       // they go out through the log only
	done     chan error // gets what became of them
}

// sendMessages hands messages to the writer of a GET stream, and waits until they are out: in the log, from which the
// client gets them, or sent.
func (w *writer) sendMessages(ctx context.Context, inLog bool, messages ...[]byte) error {
	d := delivery{messages, inLog, make(chan error, 1)}
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
// after each event and, unless check is 0, at each check. over gets the state of the stream, and says whether that is
// the end; it is called while the store is there. For a stream without a log it is called each second, and a log that
// was not to be read is read again after a second.
func (w *writer) writeUntilEnd(ctx context.Context, check time.Duration, over func(state string, note []byte) bool) error {
	wake, stop := w.s.watchLog()
	defer stop()
	var tick <-chan time.Time
	if check > 0 {
		ticker := time.NewTicker(check)
		defer ticker.Stop()
		tick = ticker.C
	}
	long := time.NewTimer(time.Until(w.resumeAt))
	defer long.Stop()
	for {
		state, note, err := w.catchUp(ctx)
		switch {
		case w.moved:
			return errMoved
		case w.out.Err() != nil:
			return w.out.Err()
		case ctx.Err() != nil, err == nil && over(state, note):
			return nil
		case errors.Is(err, errBehind):
			return err
		}
		var again <-chan time.Time
		if w.state == withoutLog || err != nil {
			again = time.After(storeAgain)
		}
		// An event of the session's log or record wakes it, and a message from another goroutine. A change whose
		// event is lost wakes it within half a minute (Logs.Watch), and with a check it looks by itself.
		select {
		case <-wake:
		case <-tick:
		case <-again:
		case <-long.C:
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
	if w.state == plain {
		w.state = logged
		w.sendPriming()
	}
}

// sendPriming gives the client an event to resume from before the first message. A client of 2025-11-25 gets it; older
// clients fail on an event without data, and get ids as messages come (X9, H8).
func (w *writer) sendPriming() {
	if id := w.eventID(w.no); id != "" && w.out != nil && w.s.currentState().takesPriming() {
		_ = w.out.Prime(id) // its error is in out
	}
}

// deliverMessages sends messages, or puts them into the log, from which they are sent next.
func (w *writer) deliverMessages(ctx context.Context, d delivery) error {
	if d.inLog {
		w.beginLog()
	}
	for _, m := range d.messages {
		w.noteEnd(m)
		if w.state == logged {
			if no, err := w.putInLog(ctx, m); err == nil {
				w.s.keepUnread(no, m)
				continue
			}
		}
		// A client without an event id begins anew on its next stream: its partial results need no log.
		if d.inLog && (w.state != withoutLog || w.resumed) {
			return errNoLog
		}
		w.sendMore(ctx, w.takeUnread(), nil) // in order
		if err := w.sendEvent("", m); err != nil {
			return err
		}
	}
	return w.out.Err()
}

// catchUp sends what the log has more than the client, and returns the state of the stream.
func (w *writer) catchUp(ctx context.Context) (state string, note []byte, err error) {
	unread := w.takeUnread()
	if w.state == withoutLog {
		w.sendMore(ctx, unread, nil)
		return "open", nil, nil
	}
	within, cancel := w.s.table.withPatience(ctx)
	defer cancel()
	more, state, note, err := w.s.readLog(within, w.name, w.no)
	if err == nil && w.isHeld() && state != "" && holderOf(note) != w.s.table.name {
		if w.moved = !isUnheld(note); w.moved { // the other one sends what is in the log
			return state, note, errMoved
		}
		state = "" // it is to be opened again
	}
	if err != nil {
		w.sendMore(ctx, unread, nil)
		return state, note, err
	}
	if gap, ok := w.firstGap(more); ok {
		after := func(m logEntry) bool { return m.no > gap || m.message == nil }
		w.sendMore(ctx, slices.DeleteFunc(unread, after), slices.DeleteFunc(more, after))
		return state, note, errBehind
	}
	w.sendRest(ctx, unread, more, state == "open")
	return state, note, nil
}

// firstGap finds the first gap that has come into the log since the stream of a client that counts began.
func (w *writer) firstGap(more []logEntry) (no int64, ok bool) {
	for _, m := range more {
		if w.count != nil && m.message == nil && m.no >= w.count.last && (!ok || m.no < no) {
			no, ok = m.no, true
		}
	}
	return no, ok
}

// sendRest sends all that the log has more than the client. One that has resumed the stream, and gets nothing so, is
// sent an event to resume from: the connection may break more than once. open says that more may follow.
func (w *writer) sendRest(ctx context.Context, unread, more []logEntry, open bool) {
	if sent := w.sendMore(ctx, unread, more); !sent && open && w.replay != nil && w.state == logged {
		w.sendPriming()
	}
	w.replay = nil
}

// sendMore sends what the log has more than the client, and those unread messages that were put into it here
// and are missing from more. It reports whether the client got any.
func (w *writer) sendMore(ctx context.Context, unread, more []logEntry) (sent bool) {
	for _, u := range unread {
		same := func(m logEntry) bool { return m.no == u.no && m.message != nil }
		if u.no > w.no && !slices.ContainsFunc(more, same) {
			more = append(more, u)
		}
	}
	slices.SortStableFunc(more, func(a, b logEntry) int {
		return cmp.Or(cmp.Compare(a.no, b.no), cmp.Compare(len(b.message), len(a.message))) // a gap has the number of the last one
	})
	if w.out != nil && len(more) > 1 && w.replay == nil { // with a replay, the store is asked in between
		w.out.Cork(true)
		defer w.out.Cork(false)
	}
	merged := make(map[string]bool) // waiting changes of a list are sent once
	for _, m := range more {
		// What the holder of the stream has put into the log since it began is sent by now, and has come as far as a gap in
		// it. Before that nothing was kept: the gap is one for the client as well.
		w.lost = w.lost || m.message == nil && (m.no > w.no || !w.isHeld())
		method, change := listChange(m.message)
		if change && merged[method] || !w.isDue(ctx, m) {
			w.no = m.no
			continue
		}
		w.sayMissing()
		if w.sendEvent(w.eventID(m.no), m.message) == nil {
			w.no, merged[method], sent = m.no, true, true
		}
	}
	w.sayMissing()
	return sent
}

func (w *writer) sendEvent(id string, message []byte) error {
	if w.out == nil {
		return eventstream.ErrClosed
	}
	return w.out.Send(id, message)
}

// sayMissing tells a client that wants warnings that messages may be missing here, if that is so.
func (w *writer) sayMissing() {
	if w.lost && loudEnough("warning", w.s.currentState().LogLevel) {
		_ = w.sendEvent("", missingNote) // its error is in out
	}
	w.lost = false
}

// missingNote says that messages may be missing in a stream.
var missingNote = jsonrpc.AppendNotification(nil, mcp.NotifyMessage, []byte(`{"level":"warning","logger":"taskgate",`+
	`"data":"messages may be missing here: a replica of the gateway was lost, or its store was away, or has come back as it was before them"}`))

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
	if h == nil || h.w != w || w.state == withoutLog && w.resumed { // another stream, or too early
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
	if w.state != logged || w.count != nil && !w.resumed && no < w.count.last {
		return ""
	}
	return eventID(w.name, no)
}

// watchLog signals wake once, and then at each possible change of the log or the state of the session, until stop is
// called.
func (s *session) watchLog() (wake <-chan struct{}, stop func()) {
	woken := make(chan struct{}, 1)
	return woken, s.table.store.Watch(s.id, func() { work.Signal(woken) })
}

// resumeCheck is how often a resumed stream checks whether its replica lives.
const resumeCheck = 5 * time.Second
