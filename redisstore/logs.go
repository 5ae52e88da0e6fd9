package redisstore

import (
	"context"
	"crypto/rand"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"taskgate/shim"
)

const (
	// logMessages and logBytes are how much of it is kept unless Keep says otherwise.
	logMessages = 1000
	logBytes    = 4 << 20
	// logAfterEnd is how long what a stream had is kept after its end.
	logAfterEnd = 10 * time.Minute
)

// sessionLogs keeps what the streams of sessions have had.
type sessionLogs struct {
	store *Store
	heart *shim.Heart // of this replica, which keeps its streams
	// messages and bytes bound the log of a session, and afterEnd how long it keeps what a
	// stream had that has ended.
	messages int
	bytes    int64
	afterEnd time.Duration
	// logTTL is how long the log of a session lasts after the last message, or the last use
	// of the session. It ends with the session; this is for a session that nobody ended. It
	// is the longer of the two, since the use of a session is noted at the log less often.
	logTTL time.Duration

	mu      sync.Mutex // guards the rest
	watches map[string][]*stateWatch
	// told has of each session the last number that was the reply to a change. The log has it as well, unless it
	// has come back older.
	told *lru.Cache[string, int64]
}

// Keep bounds the log of each session: the oldest messages go when there are more, or
// more bytes. The newest one is kept in any case. What a stream had goes a while after its
// end, about afterEnd.
func (c *Sessions) Keep(messages int, bytes int64, afterEnd time.Duration) *Sessions {
	c.messages, c.bytes, c.afterEnd = messages, bytes, afterEnd
	return c
}

// Open makes this replica the one that keeps a stream, and begins the log of the stream if
// it has none. It returns the number of the session's last message: what the stream gets
// comes after it. The note is for whoever finds the stream without its replica. A session
// that is not there is shim.ErrNotFound.
func (c *sessionLogs) Open(ctx context.Context, id, stream string, note []byte) (int64, error) {
	if err := c.heart.Alive(ctx); err != nil {
		return 0, err
	}
	v, err := c.changeLog(ctx, id, stream, "open", nil, string(note))
	switch {
	case err != nil:
		return 0, err
	case v[0] == codeNone:
		return 0, shim.ErrNotFound
	}
	return strconv.ParseInt(v[1], 10, 64)
}

// Note changes the note of a stream, and reports false where this replica does not keep
// the stream any more.
func (c *sessionLogs) Note(ctx context.Context, id, stream string, note []byte) (bool, error) {
	if err := c.heart.Alive(ctx); err != nil {
		return false, err
	}
	v, err := c.changeLog(ctx, id, stream, "note", nil, string(note))
	return err == nil && v[0] == codeOK, err
}

// Append adds a message to a stream that this replica keeps and returns its number; 0
// where it does not. Messages of one stream are added one after the other. A session that is not there is
// shim.ErrNotFound.
func (c *sessionLogs) Append(ctx context.Context, id, stream string, message []byte) (int64, error) {
	v, err := c.changeLog(ctx, id, stream, "add", message, rand.Text())
	if err == nil && v[0] == codeNone {
		return 0, shim.ErrNotFound
	}
	return messageNumber(v, err)
}

// Post is Append from any replica. A stream that nobody keeps gets the message too, for
// whoever opens it; it is 0 only where the stream has ended.
func (c *sessionLogs) Post(ctx context.Context, id, stream string, message []byte) (int64, error) {
	return messageNumber(c.changeLog(ctx, id, stream, "post", message, rand.Text()))
}

// messageNumber is the number of a message; 0 where it was not added.
func messageNumber(v []string, err error) (int64, error) {
	if err != nil || v[0] != codeOK {
		return 0, err
	}
	return strconv.ParseInt(v[1], 10, 64)
}

// Ask is Append for a message that asks a question. Where the same asker has asked it on this
// stream, nothing is added, and the number is that of its message. Where another stream has
// the question, Ask returns the name of that one. A stream has a question until it is left
// or void, and the client has the question if its stream has ended before the client had
// gone: then has is true.
func (c *sessionLogs) Ask(ctx context.Context, id, stream, asker, question, void string, message []byte) (no int64, holder string, has bool, err error) {
	v, err := c.changeLog(ctx, id, stream, "ask", message, rand.Text(), func(a *argv) {
		a.add(url.QueryEscape(question), void, asker)
	})
	if err == nil && (v[0] == codeHeld || v[0] == codeHas) {
		return 0, v[1], v[0] == codeHas, nil
	}
	no, err = messageNumber(v, err)
	return no, "", false, err
}

// Finish says that nothing more comes on a stream, if this replica keeps it, and whether its
// client had gone before.
func (c *sessionLogs) Finish(ctx context.Context, id, stream string, gone bool) error {
	note := ""
	if gone {
		note = noteGone
	}
	_, err := c.changeLog(ctx, id, stream, "end", nil, note)
	return err
}

// noteGone, in place of its note, says of a stream that has ended that its client had gone.
const noteGone = "gone"

// Leave gives a stream up, if this replica keeps it. Whoever opens it again goes on from
// what the note says.
func (c *sessionLogs) Leave(ctx context.Context, id, stream string, note []byte) error {
	_, err := c.changeLog(ctx, id, stream, "leave", nil, string(note))
	return err
}

// Bury ends a stream whose replica is gone, with the messages that last makes of its note
// and of what it had. It reports false, and changes nothing, where the stream is not lost,
// or has changed meanwhile. What its replica adds from then on, if it was only slow, is
// refused.
func (c *sessionLogs) Bury(ctx context.Context, id, stream string, last func(note []byte, had [][]byte) [][]byte) (bool, error) {
	state, v, err := c.readSince(ctx, id, stream, "0")
	if err != nil || state != "lost" {
		return false, err
	}
	var had [][]byte
	for i := sinceHead + 1; i < len(v); i += 2 {
		had = append(had, []byte(v[i]))
	}
	messages := last([]byte(v[2]), had)
	v, err = c.changeLog(ctx, id, stream, "bury", []byte(v[1]), v[2], func(a *argv) {
		a.add(v[3])
		addBytes(a, messages)
	})
	return err == nil && v[0] == codeOK, err
}

func (c *sessionLogs) changeLog(ctx context.Context, id, stream, what string, value []byte, extra string, more ...func(*argv)) (reply []string, err error) {
	a := &argv{}
	a.add(id, stream, what)
	a.list = append(a.list, value)
	a.add(extra, millis(c.logTTL))
	a.addInt(int64(c.messages), c.bytes, c.afterEnd.Milliseconds())
	a.add(c.store.keys.logEvents(id), string(c.heart.Replica()))
	told, _ := c.told.Get(id)
	a.addInt(told)
	for _, add := range more {
		add(a)
	}
	err = c.store.doRepeated(ctx, "session log", func(ctx context.Context) error {
		keys := append(c.store.keys.log(id), c.store.keys.session(id))
		reply, err = sessionLogScript.runOn(ctx, c.store.client, keys, a)
		return err
	})
	if err == nil && reply[0] == codeOK {
		if no, err := strconv.ParseInt(reply[1], 10, 64); err == nil {
			c.rememberTold(id, no)
		}
	}
	return reply, err
}

// rememberTold remembers a number that the log has noted as known here.
func (c *sessionLogs) rememberTold(id string, no int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, _ := c.told.Peek(id); was < no {
		c.told.Add(id, no)
	}
}

// maxTold is of how many sessions a replica remembers that.
const maxTold = 10_000

// Since hands over the messages that a stream got after a number, and returns what
// has become of the stream: "open", "ended", "left", "lost" if its replica is gone, with
// its note, or "" if there is none, or it is another session's. What the bounds have
// removed is left out; nil is handed over for messages that Redis, which came back older, has forgotten. Its number
// may be below the one that was given: the reader goes on from there.
func (c *sessionLogs) Since(ctx context.Context, id, stream string, after int64, on func(no int64, message []byte)) (state string, note []byte, err error) {
	state, v, err := c.readSince(ctx, id, stream, strconv.FormatInt(after, 10))
	if err != nil || state == "" {
		return "", nil, err
	}
	for i := sinceHead; i+1 < len(v); i += 2 {
		no, err := strconv.ParseInt(v[i], 10, 64)
		if err != nil {
			return "", nil, err
		}
		if v[i+1] == forgotten {
			on(no, nil)
		} else {
			on(no, []byte(v[i+1]))
		}
	}
	return state, []byte(v[2]), nil
}

// State is Since without the messages.
func (c *sessionLogs) State(ctx context.Context, id, stream string) (state string, note []byte, err error) {
	state, v, err := c.readSince(ctx, id, stream, "")
	if err != nil || state == "" {
		return "", nil, err
	}
	return state, []byte(v[2]), nil
}

// sinceHead is how much of the reply of since comes before the messages: its code, and the
// replica that keeps the stream, its note and its last operations.
const sinceHead = 4

// forgotten stands for a message that the scripts know to be forgotten.
const forgotten = "~"

// keeperLeft stands for the replica that keeps a stream, once it was left.
const keeperLeft = "-"

// readSince is Since with the reply as it came. Without a number it reads no messages.
func (c *sessionLogs) readSince(ctx context.Context, id, stream, after string) (state string, v []string, err error) {
	if len(id) > sessionName || len(stream) > sessionName {
		return "", nil, nil
	}
	a := &argv{}
	a.add(stream, after)
	err = c.store.doRepeated(ctx, "session since", func(ctx context.Context) (err error) {
		v, err = sessionSinceScript.runOn(ctx, c.store.client, c.store.keys.log(id), a)
		return err
	})
	switch {
	case err != nil || v[0] != codeOK:
		return "", nil, err
	case v[1] == "":
		v[2] = "" // it has said whether the client had gone
		return "ended", v, nil
	case v[1] == keeperLeft:
		return "left", v, nil
	}
	switch gone, err := c.IsGone(ctx, shim.Replica(v[1])); {
	case err != nil:
		return "", nil, err
	case gone:
		return "lost", v, nil
	}
	return "open", v, nil
}

// Watch calls wake once when watching has begun, and then whenever a stream of a session may
// have a new message or its state may have changed, until ctx ends. wake must neither block
// nor call back.
func (c *sessionLogs) Watch(ctx context.Context, id string, wake func()) {
	w := &stateWatch{wake}
	c.mu.Lock()
	c.watches[id] = append(c.watches[id], w)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watches[id] = slices.DeleteFunc(c.watches[id], func(o *stateWatch) bool { return o == w })
		if len(c.watches[id]) == 0 {
			delete(c.watches, id)
		}
	}()
	// Events of the log wake it, and states that are read or written here. Callers look by themselves.
	for _, err := range c.store.hub.watchChannels(ctx, []string{c.store.keys.logEvents(id)}) {
		if err != nil {
			return
		}
		wake()
	}
}

// stateWatch is one Watch, which also hears of changes of the state.
type stateWatch struct{ wake func() }

// wakeWatchers wakes who watches a session whose state has changed.
func (c *sessionLogs) wakeWatchers(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.watches[id] {
		w.wake()
	}
}
