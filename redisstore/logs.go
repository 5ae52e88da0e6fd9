package redisstore

import (
	"context"
	"crypto/rand"
	"strconv"
	"time"
)

const (
	// logMessages and logBytes are how much of it is kept unless Keep says otherwise.
	logMessages = 1000
	logBytes    = 4 << 20
	// aliveTicks is after how many ticks a replica that says nothing is lost.
	aliveTicks = 3
)

// logTTL is how long the log of a session lasts after the last message, or the last use of
// the session. It ends with the session; this is for a session that nobody ended. It is
// the longer of the two, since the use of a session is noted at the log less often.
func (c *Sessions) logTTL() time.Duration { return 2 * c.ttl() }

// Keep bounds the log of each session: the oldest messages go when there are more, or
// more bytes. The newest one is kept in any case.
func (c *Sessions) Keep(messages int, bytes int64) *Sessions {
	c.messages, c.bytes = messages, bytes
	return c
}

// Open begins the log of a stream, which this replica keeps from now on. It returns
// the number of the session's last message: what the stream gets comes after it. The
// note is for whoever finds the stream without its replica.
func (c *Sessions) Open(ctx context.Context, id, stream string, note []byte) (int64, error) {
	if err := c.live(ctx); err != nil {
		return 0, err
	}
	v, err := c.log(ctx, id, stream, "open", nil, string(note))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(v[1], 10, 64)
}

// Note changes the note of a stream, and reports false where this replica does not keep
// the stream any more.
func (c *Sessions) Note(ctx context.Context, id, stream string, note []byte) (bool, error) {
	if err := c.live(ctx); err != nil {
		return false, err
	}
	v, err := c.log(ctx, id, stream, "note", nil, string(note))
	return err == nil && v[0] == codeOK, err
}

// Append adds a message to a stream and returns its number; 0 where the stream has ended.
// A replica adds its messages to one stream one after the other; a few may come from
// others.
func (c *Sessions) Append(ctx context.Context, id, stream string, message []byte) (int64, error) {
	v, err := c.log(ctx, id, stream, "add", message, rand.Text())
	if err != nil || v[0] != codeOK {
		return 0, err
	}
	return strconv.ParseInt(v[1], 10, 64)
}

// Finish says that nothing more comes on a stream, if this replica keeps it.
func (c *Sessions) Finish(ctx context.Context, id, stream string) error {
	_, err := c.log(ctx, id, stream, "end", nil, "")
	return err
}

// Bury ends a stream whose replica is gone, with the messages that last makes of its note
// and of what it had. It reports false, and changes nothing, where the stream is not lost,
// or has changed meanwhile. What its replica adds from then on, if it was only slow, is
// refused.
func (c *Sessions) Bury(ctx context.Context, id, stream string, last func(note []byte, had [][]byte) [][]byte) (bool, error) {
	state, v, err := c.since(ctx, id, stream, 0)
	if err != nil || state != "lost" {
		return false, err
	}
	var had [][]byte
	for i := sinceHead + 1; i < len(v); i += 2 {
		had = append(had, []byte(v[i]))
	}
	messages := last([]byte(v[2]), had)
	v, err = c.log(ctx, id, stream, "bury", []byte(v[1]), v[2], func(a *argv) {
		a.add(v[3])
		addBytes(a, messages)
	})
	return err == nil && v[0] == codeOK, err
}

func (c *Sessions) log(ctx context.Context, id, stream, what string, value []byte, extra string, more ...func(*argv)) (reply []string, err error) {
	a := &argv{}
	a.add(id, stream, what)
	a.list = append(a.list, value)
	a.add(extra, millis(c.logTTL()))
	a.addInt(int64(c.messages), c.bytes)
	a.add(c.store.keys.logEvents(id), c.name)
	for _, add := range more {
		add(a)
	}
	err = c.store.do(ctx, "session log", func() error {
		reply, err = sessionLogScript.run(ctx, c.store.client, c.store.keys.log(id), a)
		return err
	})
	return reply, err
}

// Since hands over the messages that a stream got after a number, and returns what
// has become of the stream: "open", "ended", "lost" if its replica is gone, with the
// note of Open, or "" if there is none, or it is another session's. What the bounds
// have removed is left out.
func (c *Sessions) Since(ctx context.Context, id, stream string, after int64, on func(no int64, message []byte)) (state string, note []byte, err error) {
	state, v, err := c.since(ctx, id, stream, after)
	if err != nil || state == "" {
		return "", nil, err
	}
	for i := sinceHead; i+1 < len(v); i += 2 {
		no, err := strconv.ParseInt(v[i], 10, 64)
		if err != nil {
			return "", nil, err
		}
		on(no, []byte(v[i+1]))
	}
	if state != "ended" {
		note = []byte(v[2])
	}
	return state, note, nil
}

// sinceHead is how much of the reply of since comes before the messages: its code, and the
// replica that keeps the stream, its note and its last operations.
const sinceHead = 4

// since is Since with the reply as it came.
func (c *Sessions) since(ctx context.Context, id, stream string, after int64) (state string, v []string, err error) {
	if len(id) > sessionName || len(stream) > sessionName {
		return "", nil, nil
	}
	a := &argv{}
	a.add(stream)
	a.addInt(after)
	alive := false
	err = c.store.do(ctx, "session since", func() (err error) {
		v, err = sessionSinceScript.run(ctx, c.store.client, c.store.keys.log(id), a)
		if err != nil || v[0] != codeOK || v[1] == "" {
			return err
		}
		n, err := c.store.client.Exists(ctx, c.store.keys.alive(v[1])).Result()
		alive = n > 0
		return err
	})
	switch {
	case err != nil || v[0] != codeOK:
		return "", nil, err
	case v[1] == "":
		return "ended", v, nil
	case !alive:
		return "lost", v, nil
	}
	return "open", v, nil
}

// Watch calls wake whenever a stream of a session may have got something, and as soon
// as it would, until ctx ends.
func (c *Sessions) Watch(ctx context.Context, id string, wake func()) {
	for _, err := range c.store.hub.watch(ctx, []string{c.store.keys.logEvents(id)}) {
		if err != nil {
			return
		}
		wake()
	}
}

// live says that this replica is alive, so that its streams count as open.
func (c *Sessions) live(ctx context.Context) error {
	c.mu.Lock()
	fresh := time.Since(c.lived) < c.tick
	c.mu.Unlock()
	if fresh {
		return nil
	}
	return c.sayAlive(ctx)
}

// sayAlive is live, whenever that was said last.
func (c *Sessions) sayAlive(ctx context.Context) error {
	err := c.store.do(ctx, "session replica", func() error {
		return c.store.client.Set(ctx, c.store.keys.alive(c.name), "", aliveTicks*c.tick+c.store.opts.slack).Err()
	})
	if err == nil {
		c.mu.Lock()
		c.lived = time.Now()
		c.mu.Unlock()
	}
	return err
}
