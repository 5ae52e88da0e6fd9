package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/shim"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"
)

const (
	// logMessages and logBytes bound a session log unless Keep says otherwise.
	logMessages = 1000
	logBytes    = 4 << 20
	// logAfterEnd is how long the messages of a stream are kept after its end.
	logAfterEnd = 10 * time.Minute
)

// Heart is the heartbeat of a replica, as the holder of streams needs it (node.Heart).
type Heart interface {
	Replica() shim.Replica
	// Alive ensures that the store counts the replica as alive before it gets a stream.
	Alive(ctx context.Context) error
	// IsSteady reports whether the replica may declare others gone.
	IsSteady() bool
}

// sessionLogs keeps the messages of the streams of sessions.
type sessionLogs struct {
	store *Store
	heart Heart // of this replica, the holder of its streams
	// messages and bytes bound the log of a session; afterEnd is how long it keeps the messages of a stream
	// after the end of the stream.
	messages int
	bytes    int64
	afterEnd time.Duration
	// logTTL is how long the log of a session lasts after the last message, or the last use of the session. A
	// session takes its log along when it ends; logTTL is for the others. It is longer than the life of a
	// session, because uses are noted at the log less often.
	logTTL time.Duration

	room *logRoom // of all logs together; nil for any
	// knownShares names the shares that a session counts towards, the largest last; none if they are unknown here.
	knownShares func(id string) []string
	halved      *atomic.Bool // whether those without an owner have half of what all have

	mu      sync.Mutex // guards the rest
	watches map[string][]*stateWatch
	// told has, for each session, the last number that the log replied to a change. The log notes it as well,
	// unless the log has come back older.
	told *lru.Cache[string, int64]
}

// Keep bounds the log of each session, in messages and bytes: the oldest messages go first, and the newest
// one always stays. The messages of a stream go about afterEnd after its end.
func (c *Sessions) Keep(messages int, bytes int64, afterEnd time.Duration) *Sessions {
	c.messages, c.bytes, c.afterEnd = messages, bytes, afterEnd
	return c
}

// Open makes this replica the holder of a stream, and begins the log of the stream if it has none. It returns
// the number of the session's last message: the messages of the stream come after it. The note is for the
// replica that finds the stream without its holder. If the session does not exist, the error is
// shim.ErrNotFound.
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

// Note changes the note of a stream. It reports false if this replica has ceased to be the holder.
func (c *sessionLogs) Note(ctx context.Context, id, stream string, note []byte) (bool, error) {
	if err := c.heart.Alive(ctx); err != nil {
		return false, err
	}
	v, err := c.changeLog(ctx, id, stream, "note", nil, string(note))
	return err == nil && v[0] == codeOK, err
}

// Append adds a message to a stream of which this replica is the holder, and returns its number; 0 if it is
// not the holder. Messages of one stream are added one after the other. If the session does not exist, the
// error is shim.ErrNotFound.
func (c *sessionLogs) Append(ctx context.Context, id, stream string, message []byte) (int64, error) {
	v, err := c.changeLog(ctx, id, stream, "add", message, rand.Text())
	if err == nil && v[0] == codeNone {
		return 0, shim.ErrNotFound
	}
	return messageNumber(v, err)
}

// Post is Append from any replica. A stream without a holder gets the message too, for its next holder. The
// number is 0 only if the stream has ended.
func (c *sessionLogs) Post(ctx context.Context, id, stream string, message []byte) (int64, error) {
	return messageNumber(c.changeLog(ctx, id, stream, "post", message, rand.Text()))
}

// messageNumber is the number of a message; 0 if it was not added.
func messageNumber(v []string, err error) (int64, error) {
	if err != nil || v[0] != codeOK {
		return 0, err
	}
	return strconv.ParseInt(v[1], 10, 64)
}

// Ask is Append for a message that asks a question. If the same asker has asked it on this stream, Ask adds
// nothing and returns the number of that message. If another stream has the question, Ask returns the name of
// that stream. A stream has a question until it is left or void. If the stream ended while its client was
// there, the client has the question: then has is true.
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

// Finish ends a stream if this replica is its holder, and notes whether its client had gone before.
func (c *sessionLogs) Finish(ctx context.Context, id, stream string, gone bool) error {
	note := ""
	if gone {
		note = noteGone
	}
	_, err := c.changeLog(ctx, id, stream, "end", nil, note)
	return err
}

// noteGone is the note of a stream that has ended after its client had gone.
const noteGone = "gone"

// Leave gives a stream up if this replica is its holder. The next holder goes on from the note.
func (c *sessionLogs) Leave(ctx context.Context, id, stream string, note []byte) error {
	_, err := c.changeLog(ctx, id, stream, "leave", nil, string(note))
	return err
}

// Bury ends a stream whose replica is gone, with the messages that last makes of its note and its messages.
// It reports false, and leaves the stream as it is, if the stream is not lost or has changed meanwhile. The
// log refuses later messages of that replica, which may only have been slow.
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
		addList(a, messages)
	})
	return err == nil && v[0] == codeOK, err
}

func (c *sessionLogs) changeLog(ctx context.Context, id, stream, what string, value []byte, extra string, more ...func(*argv)) (reply []string, err error) {
	a := &argv{}
	a.add(id, stream, what)
	a.list = append(a.list, value)
	a.add(extra, millis(c.logTTL))
	bytes := c.bytes
	if c.room != nil {
		var err error
		if bytes, err = c.room.left(ctx, id, c.ownerOf(id), bytes, int64(len(value))); err != nil {
			return nil, err
		}
	}
	a.addInt(int64(c.messages), bytes, c.afterEnd.Milliseconds())
	a.add(c.store.keys.logEvents(id), string(c.heart.Replica()))
	told, _ := c.told.Get(id)
	a.addInt(told)
	for _, add := range more {
		add(a)
	}
	err = c.store.doRepeated(ctx, "session log", func(ctx context.Context) error {
		keys := append(c.store.keys.log(id), c.store.keys.session(id), changesOf(c.store.keys, id))
		reply, err = sessionLogScript.runOn(ctx, c.store.client, keys, a)
		return err
	})
	if err == nil && reply[0] == codeOK {
		if c.room != nil && len(reply) > 2 {
			n, _ := strconv.ParseInt(reply[2], 10, 64)
			c.room.noteBytes(id, c.ownerOf(id), n)
		}
		if no, err := strconv.ParseInt(reply[1], 10, 64); err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if was, _ := c.told.Peek(id); was < no {
				c.told.Add(id, no)
			}
		}
	}
	return reply, err
}

// maxTold is the number of sessions for which a replica remembers it.
const maxTold = 10_000

// Since hands over the messages of a stream after a number, and returns the state of the stream with its
// note: "open", "ended", "left", "lost" if its replica is gone, or "" if this session has no such stream.
// Messages that the bounds have removed are left out. A nil message stands for messages that a Redis which
// came back older has forgotten. Its number may be below the given one: the reader goes on from there.
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

// sinceHead is the number of strings before the messages in the reply of session_since: its code, the holder
// of the stream, its note and its last operations.
const sinceHead = 4

// forgotten stands for messages that the log has forgotten.
const forgotten = "~"

// keeperLeft stands for the holder of a stream that was left.
const keeperLeft = "-"

// readSince is Since with the raw reply. If after is "", it reads no messages.
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
		v[2] = "" // it says whether the client had gone
		return "ended", v, nil
	case v[1] == keeperLeft:
		return "left", v, nil
	}
	switch gone, err := c.isReplicaGone(ctx, shim.Replica(v[1])); {
	case err != nil:
		return "", nil, err
	case gone:
		return "lost", v, nil
	}
	return "open", v, nil
}

// Watch calls wake once when watching has begun, and then whenever a stream of a session may have a new
// message or the session's state may have changed, until stop is called. wake must neither block nor call back.
//
// Events of the log wake it, and learnState does for states that are read or written here. Run finds changes whose
// event was lost, within signalsCheck.
func (c *sessionLogs) Watch(id string, wake func()) (stop func()) {
	w := &stateWatch{wake}
	c.mu.Lock()
	c.watches[id] = append(c.watches[id], w)
	c.mu.Unlock()
	unwatch := c.store.hub.callOn(c.store.keys.logEvents(id), wake)
	return func() {
		unwatch()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watches[id] = slices.DeleteFunc(c.watches[id], func(o *stateWatch) bool { return o == w })
		if len(c.watches[id]) == 0 {
			delete(c.watches, id)
		}
	}
}

// stateWatch is one Watch, which also hears of changes of the state.
type stateWatch struct{ wake func() }

// wakeWatchers wakes those who watch a session whose state has changed.
func (c *sessionLogs) wakeWatchers(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.watches[id] {
		w.wake()
	}
}

// ownerOf names the share of an owner, or of all without one, that a session counts towards.
func (c *sessionLogs) ownerOf(id string) string {
	if shares := c.knownShares(id); len(shares) > 0 {
		return shares[len(shares)-1]
	}
	return digest("")
}

// KeepInAll bounds the bytes of all logs in a store that this process has for itself; half of them are for one owner, or
// for all without one. Beyond that a log keeps less, and no message that is larger than leastLog.
func (c *sessionLogs) KeepInAll(most int64) {
	if e := c.store.embedded; e != nil && most > 0 {
		c.room = &logRoom{store: c.store, most: most, halved: c.halved, logs: make(map[string]logSize), owners: make(map[string]int64)}
		c.room.readLogs()
	}
}

const (
	// leastLog is how many bytes the log of a session may have in any case, and one message more.
	leastLog = 16 << 10
	// countAgain is how often all logs are counted anew while there is no room: they shrink and go by themselves.
	countAgain = 2 * time.Second
)

// logRoom counts the bytes of all session logs.
type logRoom struct {
	store  *Store
	most   int64
	halved *atomic.Bool // whether those without an owner have half of it

	mu      sync.Mutex // guards the rest
	logs    map[string]logSize
	all     int64            // bytes of all logs
	owners  map[string]int64 // bytes of each owner
	counted time.Time        // when all were counted last
}

// logSize is how large a log is, and to whose share it counts.
type logSize struct {
	owner string
	bytes int64
}

// left returns how many bytes the log of a session may have, at most so many, or refuses a message of a size.
func (r *logRoom) left(ctx context.Context, id, owner string, most, size int64) (int64, error) {
	left, alone := r.leftOf(id, owner)
	if left < most && r.countLogs(ctx) {
		left, alone = r.leftOf(id, owner)
	}
	left = max(leastLog, min(left, most))
	if size > left && !alone {
		return 0, &shim.BusyError{Key: "max_log_bytes", Limit: "bytes kept for resumption"}
	}
	return left, nil
}

// leftOf returns what the logs of all others leave to a session, and whether its owner has no other log.
func (r *logRoom) leftOf(id, owner string) (left int64, alone bool) {
	share := r.most / 2
	if owner == digest("") && !r.halved.Load() {
		share = r.most
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := r.logs[id]
	others := r.owners[owner]
	if mine.owner == owner {
		others -= mine.bytes
	}
	return min(r.most-r.all+mine.bytes, share-others), others == 0
}

func (r *logRoom) noteBytes(id, owner string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.logs[id]
	r.all += n - was.bytes
	if r.owners[was.owner] -= was.bytes; r.owners[was.owner] == 0 {
		delete(r.owners, was.owner)
	}
	if n == 0 {
		delete(r.logs, id)
		return
	}
	r.owners[owner] += n
	r.logs[id] = logSize{owner, n}
}

// countLogs reads how large all known logs are, unless that was done just now.
func (r *logRoom) countLogs(ctx context.Context) bool {
	r.mu.Lock()
	if time.Since(r.counted) < countAgain {
		r.mu.Unlock()
		return false
	}
	r.counted = time.Now()
	ids := slices.Collect(maps.Keys(r.logs))
	r.mu.Unlock()
	p := r.store.client.Pipeline()
	sizes := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		sizes[i] = p.HGet(ctx, r.store.keys.log(id)[1], "bytes")
	}
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return false
	}
	for i, id := range ids {
		n, _ := sizes[i].Int64() // 0 if the log is gone
		r.mu.Lock()
		owner := r.logs[id].owner
		r.mu.Unlock()
		r.noteBytes(id, owner, n)
	}
	return true
}

// readLogs counts the logs that a start has found.
func (r *logRoom) readLogs() {
	redis := r.store.embedded.server
	for _, key := range redis.Keys() {
		_, id, is := strings.Cut(key, "}:streams:")
		if !is || !strings.HasPrefix(key, r.store.keys.prefix+":{") {
			continue
		}
		n, _ := strconv.ParseInt(redis.HGet(key, "bytes"), 10, 64)
		owners := append([]string{digest("")}, strings.Fields(redis.HGet(r.store.keys.session(id), "owner"))...)
		r.noteBytes(id, owners[len(owners)-1], n)
	}
}
