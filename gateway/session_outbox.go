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
	about string // what it tells the state of; "" for nothing that changes
}

func newOutbox() *outbox { return &outbox{ready: make(chan struct{}, 1)} }

// put adds a message, and drops the oldest ones beyond the bounds. A message that
// is still waiting in the same words is not added again: notifications of a
// change say nothing more when said twice.
func (o *outbox) put(msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.ContainsFunc(o.msgs, func(m waiting) bool { return bytes.Equal(m.text, msg) }) {
		return
	}
	o.add(waiting{text: msg})
}

// putLatest adds a message that tells the state of something, in place of an older
// one about the same that is still waiting.
func (o *outbox) putLatest(about string, msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.msgs = slices.DeleteFunc(o.msgs, func(m waiting) bool {
		if m.about != about {
			return false
		}
		o.size -= len(m.text)
		return true
	})
	o.add(waiting{text: msg, about: about})
}

// add appends a message. The lock is held.
func (o *outbox) add(m waiting) {
	o.msgs = append(o.msgs, m)
	o.size += len(m.text)
	o.trim()
	o.signal()
}

// take removes the oldest message.
func (o *outbox) take() ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.msgs) == 0 {
		return nil, false
	}
	msg := o.msgs[0].text
	o.msgs = o.msgs[1:]
	o.size -= len(msg)
	return msg, true
}

// giveBack returns a message that could not be sent to the head of the line, for
// the next stream: each message goes out on one stream (X5), but on one that
// works.
func (o *outbox) giveBack(msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.msgs = slices.Insert(o.msgs, 0, waiting{text: msg})
	o.size += len(msg)
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
		o.size -= len(o.msgs[0].text)
		o.msgs = o.msgs[1:]
	}
}

func (o *outbox) signal() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}
