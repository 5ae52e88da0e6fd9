package gateway

import (
	"bytes"
	"slices"
	"sync"
)

// What an outbox holds at most. Where more comes, the oldest messages are
// dropped: they are notifications, and the newest ones say what is true now.
const (
	outboxMessages = 256
	outboxBytes    = 1 << 20
)

// outbox is what a session's GET stream has still to send. While the stream is
// open it is usually empty; between two streams it keeps what arrives, within
// bounds, for the next one.
type outbox struct {
	mu    sync.Mutex
	msgs  []waiting
	size  int
	ready chan struct{} // holds a token while there may be messages
}

// waiting is a message that has still to be sent.
type waiting struct {
	text  []byte
	about string // what it tells the state of, or asks; "" for nothing that changes
	kept  bool   // is not dropped for others
	// numbered says that the client counts such messages, or that it comes after some:
	// it goes out through the log, and in its turn (see session_partials.go).
	numbered bool
	gone     func() // is told when it has gone out; nil for nobody
}

// out is to be called once the message has gone out.
func (m waiting) out() {
	if m.gone != nil {
		m.gone()
	}
}

// weight is what a message counts towards the bounds. Numbered ones have a bound of
// their own.
func (m waiting) weight() int {
	if m.numbered {
		return 0
	}
	return len(m.text)
}

func newOutbox() *outbox { return &outbox{ready: make(chan struct{}, 1)} }

// put adds a message, and drops the oldest ones beyond the bounds. A message that
// is still waiting in the same words is not added again: notifications of a
// change say nothing more when said twice.
func (o *outbox) put(msg []byte) { o.putOnce(waiting{text: msg}) }

// putRequest adds a request to the client, about something that may be over before it
// goes out. It is not dropped for other messages: who sent it waits for the answer. There
// are as many as tasks of the session ask.
func (o *outbox) putRequest(about string, msg []byte) {
	o.putOnce(waiting{text: msg, about: about, kept: true})
}

// putOver takes the request about something back. If it has gone out, msg tells the client.
func (o *outbox) putOver(about string, msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.msgs)
	o.drop(func(w waiting) bool { return w.about == about })
	if len(o.msgs) == before {
		o.add(waiting{text: msg, kept: true})
	}
}

// forgetRequests removes the requests: who sent them looks again for the next stream what
// is still to be asked.
func (o *outbox) forgetRequests() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(func(m waiting) bool { return m.kept && m.about != "" })
}

func (o *outbox) putOnce(m waiting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.ContainsFunc(o.msgs, func(w waiting) bool { return bytes.Equal(w.text, m.text) }) {
		o.add(m)
	}
}

// putLatest adds a message that tells the state of something, in place of an older
// one about the same that is still waiting.
func (o *outbox) putLatest(about string, msg []byte) { o.putState(waiting{text: msg, about: about}) }

func (o *outbox) putState(m waiting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(func(w waiting) bool { return w.about == m.about })
	o.add(m)
}

// drop removes messages. The lock is held.
func (o *outbox) drop(which func(waiting) bool) {
	o.msgs = slices.DeleteFunc(o.msgs, func(m waiting) bool {
		if !which(m) {
			return false
		}
		o.size -= m.weight()
		return true
	})
}

// putNumbered adds a message whose turn it is. Who sends such messages waits for them
// to go out before there are too many.
func (o *outbox) putNumbered(m waiting) {
	m.numbered = true
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(m)
}

// forgetTasks removes what was to be told of tasks: it is read again for the next
// stream.
func (o *outbox) forgetTasks() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(func(m waiting) bool { return m.numbered || m.about != "" })
}

// add appends a message. The lock is held.
func (o *outbox) add(m waiting) {
	o.msgs = append(o.msgs, m)
	o.size += m.weight()
	o.trim()
	o.signal()
}

// take removes the oldest message.
func (o *outbox) take() (waiting, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.msgs) == 0 {
		return waiting{}, false
	}
	m := o.msgs[0]
	o.msgs = o.msgs[1:]
	o.size -= m.weight()
	return m, true
}

// giveBack returns a message that could not be sent to the head of the line, for
// the next stream: each message goes out on one stream (X5), but on one that
// works.
func (o *outbox) giveBack(m waiting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.msgs = slices.Insert(o.msgs, 0, m)
	o.size += m.weight()
	o.trim()
	o.signal()
}

func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.msgs) == 0
}

func (o *outbox) trim() {
	for len(o.msgs) > outboxMessages || o.size > outboxBytes && len(o.msgs) > 1 {
		i := slices.IndexFunc(o.msgs, func(m waiting) bool { return !m.kept && !m.numbered })
		if i < 0 {
			return
		}
		o.size -= o.msgs[i].weight()
		o.msgs = slices.Delete(o.msgs, i, i+1)
	}
}

func (o *outbox) signal() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}
