package redisstore

import (
	"context"
	"crypto/rand"
	"math"
	"strconv"
	"time"
)

const (
	// logTTL is how long the log of a session lasts after the last message. It ends
	// with the session; this is for a session that nobody ended.
	logTTL = 25 * time.Hour
	// logMessages and logBytes are how much of it is kept unless Keep says otherwise.
	logMessages = 1000
	logBytes    = 4 << 20
	// aliveTicks is after how many ticks a replica that says nothing is lost.
	aliveTicks = 3
)

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

// Append adds a message to a stream and returns its number; 0 where another replica has
// taken the stream. A replica adds its messages to one stream one after the other; a few
// may come from others.
func (c *Sessions) Append(ctx context.Context, id, stream string, message []byte) (int64, error) {
	v, err := c.log(ctx, id, stream, "add", message, rand.Text())
	if err != nil || v[0] != codeOK {
		return 0, err
	}
	return strconv.ParseInt(v[1], 10, 64)
}

// Finish says that nothing more comes on a stream, unless another replica has taken it.
func (c *Sessions) Finish(ctx context.Context, id, stream string) error {
	_, err := c.log(ctx, id, stream, "end", nil, "")
	return err
}

// Leave says that this replica goes on with a stream no more, and another one may.
func (c *Sessions) Leave(ctx context.Context, id, stream string) error {
	_, err := c.log(ctx, id, stream, "leave", nil, "")
	return err
}

// Take makes this replica the one that keeps the log of a stream whose replica is gone,
// or has left it, with a new note. It reports false if that one lives, if another one was first, or if
// the stream has ended or is none. fresh says that it never had a message. What the
// replica before adds to it from then on, or says of its end, is refused.
func (c *Sessions) Take(ctx context.Context, id, stream string, note []byte) (taken, fresh bool, err error) {
	state, before, _, err := c.since(ctx, id, stream, math.MaxInt64)
	if err != nil || state != "lost" {
		return false, false, err
	}
	if err := c.live(ctx); err != nil {
		return false, false, err
	}
	v, err := c.log(ctx, id, stream, "take", []byte(before), string(note))
	if err != nil || v[0] != codeOK {
		return false, false, err
	}
	return true, v[2] == "", nil
}

func (c *Sessions) log(ctx context.Context, id, stream, what string, value []byte, extra string) (reply []string, err error) {
	a := &argv{}
	a.add(id, stream, what)
	a.list = append(a.list, value)
	a.add(extra, millis(logTTL))
	a.addInt(int64(c.messages), c.bytes)
	a.add(c.store.keys.logEvents(id), c.name)
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
	state, _, v, err := c.since(ctx, id, stream, after)
	if err != nil || state == "" {
		return "", nil, err
	}
	for i := 3; i+1 < len(v); i += 2 {
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

// since is Since with the replica that keeps the stream, and the reply as it came.
func (c *Sessions) since(ctx context.Context, id, stream string, after int64) (state, replica string, v []string, err error) {
	if len(id) > sessionName || len(stream) > sessionName {
		return "", "", nil, nil
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
		return "", "", nil, err
	case v[1] == "":
		return "ended", "", v, nil
	case !alive:
		return "lost", v[1], v, nil
	}
	return "open", v[1], v, nil
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
