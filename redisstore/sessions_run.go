package redisstore

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// sweepMax bounds how many sessions one sweep finds that may have ended.
const sweepMax = 100

// Run ends idle sessions until ctx ends. It asks busy whether this replica still holds streams or calls of a
// session, which keep the session in use. It calls ended for each session that is gone other than by Delete
// here, with its latest state that this replica knows. It calls signal for each signal that was sent to a
// session that this replica knows, with the time of sending by this replica's clock.
func (c *Sessions) Run(ctx context.Context, busy func(id string) bool, ended func(id string, state []byte), signal func(id, text, token string, at time.Time)) error {
	c.mu.Lock()
	c.busy, c.ended, c.signal = busy, ended, signal
	c.mu.Unlock()
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { c.listenForChanges(ctx) })
	t := time.NewTicker(c.tick)
	defer t.Stop()
	for {
		// A later tick repeats what fails.
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		used, left, now := c.dueSessions()
		if len(left) > 0 && c.lookAfter(ctx, left, false) {
			c.noteKept(left, now)
		}
		for ids := range slices.Chunk(used, 100) {
			if !c.lookAfter(ctx, ids, true) {
				break // the next tick tries again
			}
			c.noteKept(ids, now)
		}
		c.sweepSets(ctx, used)
	}
}

// listenForChanges reads sessions again that have changed at other replicas.
func (c *Sessions) listenForChanges(ctx context.Context) {
	// Events of sessions wake it, and each reconnect. Run finds what is lost: a signal within signalsCheck
	// (30 s); and a state is believed for sessionFresh (5 s).
	for e, err := range c.store.hub.watchChannels(ctx, []string{c.store.keys.sessionEvents()}) {
		if err != nil {
			return // the store is closed
		}
		if !e.Synced {
			if e.Token != "" {
				c.tellNew(string(e.ID), strings.Split(e.Token, signalsEnd))
			}
			if e.Version != signalSent || e.Token == "" {
				c.lookAgain(ctx, string(e.ID), e.Version == signalSent)
			}
			continue
		}
		c.mu.Lock()
		known := slices.Collect(maps.Keys(c.known))
		c.mu.Unlock()
		for _, id := range known {
			c.lookAgain(ctx, id, false)
		}
	}
}

// lookAgain reads a session that an event was about. For a signal it reads the signals only: clients cause
// signals as often as they like, and a state may be large.
func (c *Sessions) lookAgain(ctx context.Context, id string, signal bool) {
	c.mu.Lock()
	_, known := c.known[id]
	c.mu.Unlock()
	if !signal {
		c.doubtState(id)
	}
	if !known {
		return
	}
	if !signal {
		if _, rev, err := c.readState(ctx, id, false); err != nil || rev == 0 {
			return
		}
	}
	c.lookAfter(ctx, []string{id}, false)
}

// tellSignals hands on those signals of a session that are new here. A signal whose event is on its way
// waits: it comes with its token then, or at the next tick without it. ahead is how far the clock here is
// before that of the store, plus the time that the answer of the store took. So a signal never seems older
// than it is, and the cancellation of a request that has begun is never taken for that of an earlier request.
func (c *Sessions) tellSignals(id string, signals []string, ahead time.Duration) {
	var fresh []string
	c.mu.Lock()
	if k := c.known[id]; k != nil {
		k.awaits = false
		listed := make(map[string]bool, len(signals))
		for _, w := range signals {
			switch {
			case k.told[w]:
			case time.Since(signalTimeOf(w, ahead)) < eventTime:
				k.awaits = true
				continue
			default:
				fresh = append(fresh, w)
			}
			listed[w] = true
		}
		k.told = listed
	}
	on := c.signal
	c.mu.Unlock()
	for _, signal := range fresh {
		_, text, _ := strings.Cut(signal, " ")
		on(id, text, "", signalTimeOf(signal, ahead))
	}
}

// eventTime is how long the event of a signal is waited for.
const eventTime = time.Second

// signalTimeOf is when a signal was sent, by the clock here.
func signalTimeOf(signal string, ahead time.Duration) time.Time {
	name, _, _ := strings.Cut(signal, " ")
	_, ms, _ := strings.Cut(name, "@")
	left, _ := strconv.ParseInt(ms, 10, 64)
	at := time.UnixMilli(left + 1).Add(ahead) // the store drops fractions of a ms
	if now := time.Now(); now.Before(at) {
		return now
	}
	return at
}

// tellNew hands on signals that came with their event: they were sent just now.
func (c *Sessions) tellNew(id string, signals []string) {
	var fresh []string
	c.mu.Lock()
	if k := c.known[id]; k != nil {
		if k.told == nil || len(k.told) > 2*signalMax {
			k.told = make(map[string]bool) // if one is then repeated, each request knows that it is older
		}
		for _, signal := range signals {
			name, text, _ := strings.Cut(signal, " ")
			name, _, _ = strings.Cut(name, signalToken)
			if w := name + " " + text; !k.told[w] { // as the list has it
				k.told[w], fresh = true, append(fresh, signal)
			}
		}
	}
	on := c.signal
	c.mu.Unlock()
	for _, signal := range fresh {
		name, text, _ := strings.Cut(signal, " ")
		_, token, _ := strings.Cut(name, signalToken)
		on(id, text, token, time.Now())
	}
}

// signalsCheck is how often a session in use is looked at while events are missing. A signal is kept for
// twice as long.
const signalsCheck = signalTime / 2

// lookAfter checks whether sessions exist, and reads their signals: an event may be lost, and the read after
// it may fail. It removes the messages of ended streams from their logs. For sessions in use it also renews the expiry,
// that of their logs included. It reports false if the store fails.
func (c *Sessions) lookAfter(ctx context.Context, ids []string, used bool) bool {
	there, signals := make([]*redis.IntCmd, len(ids)), make([]*redis.StringSliceCmd, len(ids))
	ends := make([]*redis.SliceCmd, len(ids)) // when the first stream of each ended, if any did
	var now *redis.TimeCmd
	err := c.store.doRepeated(ctx, "session check", func(ctx context.Context) error {
		p := c.store.client.Pipeline()
		for i, id := range ids {
			there[i] = p.Exists(ctx, c.store.keys.session(id))
			signals[i] = p.LRange(ctx, c.store.keys.signals(id), 0, -1)
			ends[i] = p.HMGet(ctx, c.store.keys.log(id)[1], "due")
			if !used {
				continue
			}
			for _, key := range c.store.keys.log(id) {
				p.PExpire(ctx, key, c.logTTL)
			}
			p.PExpire(ctx, c.store.keys.session(id), c.ttl())
		}
		now = p.Time(ctx)
		_, err := p.Exec(ctx)
		return err
	})
	if err != nil {
		c.store.log.DebugContext(ctx, "sessions were not looked at", "err", err)
		return false
	}
	done := true
	for i, id := range ids {
		if there[i].Val() == 0 {
			c.noteEnded(id)
			continue
		}
		c.tellSignals(id, signals[i].Val(), time.Since(now.Val()))
		// The first of its streams that has ended.
		if ended := ends[i].Val(); len(ended) > 0 && ended[0] != nil && ended[0] != "" {
			_, err := c.changeLog(ctx, id, "", "clear", nil, "") // if it fails, the next look repeats it
			done = done && err == nil
		}
	}
	return done
}

// noteKept notes that sessions were looked after. now is when they were due: a use since then is still to be noted.
func (c *Sessions) noteKept(ids []string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if k := c.known[id]; k != nil {
			k.kept = now
		}
	}
}

// dueSessions returns the sessions in use that need a look by now, and up to 100 whose logs can be cleared since their
// use, both as of now. It forgets those that have been unused for long.
func (c *Sessions) dueSessions() (ids, left []string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = time.Now()
	unused := c.afterEnd * 3 / 2
	for id, k := range c.known {
		if c.busy(id) {
			k.used = now
		}
		switch {
		case now.Sub(k.used) > 2*c.ttl()+10*c.tick: // nobody has reported their end
			delete(c.known, id)
		case k.awaits, k.used.After(k.kept) && now.Sub(k.kept) >= min(signalsCheck-c.tick, c.idle/8, c.afterEnd/4):
			ids = append(ids, id)
		case now.Sub(k.used) > unused && k.kept.Sub(k.used) <= unused && len(left) < 100:
			left = append(left, id)
		}
	}
	return ids, left, now
}

// ownersOf returns the sessions that are known here, each with the number of the key of its owner's set.
// These keys follow that of the set of all.
func (c *Sessions) ownersOf(ids []string) (keys, used []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys = []string{c.store.keys.sessions()}
	number := map[string]string{"": "1"}
	for _, id := range ids {
		k := c.known[id]
		if k == nil {
			continue
		}
		if number[k.owner] == "" {
			keys = append(keys, c.store.keys.sessionsOf(k.owner))
			number[k.owner] = strconv.Itoa(len(keys))
		}
		used = append(used, id, number[k.owner])
	}
	return keys, used
}

// sweepSets notes the sessions in use in the set of all sessions, and takes the expired ones out. The replica
// that takes a session out reports its end, so that it is reported even if every replica has forgotten the
// session.
func (c *Sessions) sweepSets(ctx context.Context, ids []string) {
	keys, used := c.ownersOf(ids)
	a := &argv{}
	a.addInt(c.life().Milliseconds(), sweepMax)
	addList(a, used)
	var found []string
	err := c.store.doRepeated(ctx, "session sweep", func(ctx context.Context) (err error) {
		found, err = sessionSweepScript.runOn(ctx, c.store.client, keys, a)
		return err
	})
	if err != nil {
		c.store.log.DebugContext(ctx, "idle sessions were not looked for", "err", err)
		return
	}
	for _, id := range found[1:] {
		if _, err := c.removeExpired(ctx, id); err != nil {
			return
		}
	}
}

// removeExpired takes a session out of the set if its hash is gone, which it reports. It tells its end here if this
// replica knew the session, or is the one that took it out. Taking it out comes last, so that the next sweep repeats
// whatever fails before. The session is forgotten here first, so that the event of its end is ignored here.
func (c *Sessions) removeExpired(ctx context.Context, id string) (gone bool, err error) {
	var state []byte
	err = c.store.doRepeated(ctx, "session expired", func(ctx context.Context) error {
		n, err := c.store.client.Exists(ctx, c.store.keys.session(id)).Result()
		if err != nil || n > 0 {
			return err
		}
		if last, known := c.forgetSession(id); known {
			gone, state = true, last
		}
		if err := c.endSession(ctx, id); err != nil { // its log and its signals
			return err
		}
		// The entry in its owner's set expires by itself: the owner is unknown by now.
		removed, err := c.store.client.ZRem(ctx, c.store.keys.sessions(), id).Result()
		gone = gone || removed > 0
		return err
	})
	if gone {
		c.onEnded()(id, state)
	}
	return gone, err
}
