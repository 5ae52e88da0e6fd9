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

	"taskgate/shim"
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
	changes := changesSeen{sessions: c}
	t := time.NewTicker(c.tick)
	defer t.Stop()
	for {
		// A later tick repeats what fails.
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if changes.last.IsZero() || time.Since(changes.last) >= min(signalsCheck-c.tick, c.idle/8) {
			changes.lookForChanges(ctx)
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
		c.sweepSets(ctx, append(used, c.openSessions()...))
	}
}

// listenForChanges reads sessions again that have changed at other replicas.
func (c *Sessions) listenForChanges(ctx context.Context) {
	// Events of sessions wake it, and each reconnect. Run finds what is lost within signalsCheck (30 s); and a state is
	// believed for sessionFresh (5 s).
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
		for _, id := range knownIDs(c) {
			c.lookAgain(ctx, id, false)
		}
	}
}

func knownIDs(c *Sessions) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.known))
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
		// When the first of its streams ended.
		first := ""
		if due := ends[i].Val(); len(due) > 0 {
			first, _ = due[0].(string)
		}
		if first != "" {
			_, err := c.changeLog(ctx, id, "", "clear", nil, "") // if it fails, the next look repeats it
			done = done && err == nil
		}
		c.mu.Lock()
		if k := c.known[id]; k != nil {
			k.noteEnds(first, now.Val(), c.afterEnd)
		}
		c.mu.Unlock()
	}
	return done
}

// noteEnds notes when the log of the session is to be cleared of streams that have ended. first is when the first of them
// did, by the clock of the store, in ms; "" if none has. sessionLogs.afterEnd is after.
func (k *knownSession) noteEnds(first string, now time.Time, after time.Duration) {
	if k.clear = (time.Time{}); first != "" {
		ms, _ := strconv.ParseInt(first, 10, 64)
		k.clear = time.Now().Add(max(time.UnixMilli(ms).Add(after*5/4).Sub(now), after/4)) // as session_log.lua does
	}
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
		case k.awaits, !k.clear.IsZero() && !now.Before(k.clear), k.used.After(k.kept) && now.Sub(k.kept) >= c.idle/8:
			ids = append(ids, id)
		case now.Sub(k.used) > unused && k.kept.Sub(k.used) <= unused && len(left) < 100:
			left = append(left, id)
		}
	}
	return ids, left, now
}

// openSessions returns the sessions of which a call or a stream is open here while the sets do not know that.
func (c *Sessions) openSessions() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, k := range c.known {
		if time.Since(k.open) > (openTicks-3)*c.tick && c.busy(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// listUses returns the sessions that are known here, as session_sweep takes them: each with how much later than now
// it is needed, and the numbers of the keys of its shares. These keys follow that of the set of all. With open, those of
// which a call or a stream is open are needed for some ticks.
func (c *Sessions) listUses(ids []string, keep time.Duration, open bool) (keys, used []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys = c.store.keys.sessionSets(nil)
	number := map[string]int{}
	for _, id := range ids {
		k := c.known[id]
		if k == nil {
			continue
		}
		later := keep.Milliseconds()
		switch {
		case open && c.busy(id):
			later, k.open = (openTicks * c.tick).Milliseconds(), time.Now()
		case !k.begun:
			later = -sessionYoung
		}
		var numbers []string
		for _, share := range k.shares {
			if number[share] == 0 {
				keys = append(keys, c.store.keys.sessionsOf(share))
				number[share] = len(keys)
			}
			numbers = append(numbers, strconv.Itoa(number[share]))
		}
		used = append(used, id, strconv.FormatInt(later, 10), strings.Join(numbers, " "))
	}
	return keys, used
}

// noteUses notes in the sets what listUses has returned, and finds up to most sessions that may have ended.
func (c *Sessions) noteUses(ctx context.Context, keys, used []string, most int64) (found []string, err error) {
	a := &argv{}
	a.addInt(c.life().Milliseconds(), most, sessionYoung)
	addList(a, used)
	err = c.store.doRepeated(ctx, "session sweep", func(ctx context.Context) error {
		found, err = sessionSweepScript.runOn(ctx, c.store.client, keys, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	return found[1:], nil
}

// sweepSets notes the sessions in use in the set of all sessions, and takes the expired ones out. The replica
// that takes a session out reports its end, so that it is reported even if every replica has forgotten the
// session. It also counts the sessions, and those without an owner.
func (c *Sessions) sweepSets(ctx context.Context, ids []string) {
	keys, used := c.listUses(ids, 0, true)
	found, err := c.noteUses(ctx, keys, used, sweepMax)
	if err != nil {
		c.store.log.DebugContext(ctx, "idle sessions were not looked for", "err", err)
		return
	}
	for _, id := range found {
		if _, err := c.removeExpired(ctx, id); err != nil {
			return
		}
	}
	p := c.store.client.Pipeline()
	all, strangers := p.ZCard(ctx, c.store.keys.sessions()), p.ZCard(ctx, c.store.keys.sessionsOf(digest("")))
	if _, err := p.Exec(ctx); err == nil && c.max > 0 {
		share := shim.StrangersShare(c.max, c.halved.Load())
		c.usage.Store(min(1, max(float64(all.Val())/float64(c.max), float64(strangers.Val())/float64(share))))
	}
}

// Usage returns how full the limit was at the last look, from 0 to 1: as a whole, or the share of all without an owner,
// whichever is fuller.
func (c *Sessions) Usage() float64 {
	used, _ := c.usage.Load().(float64)
	return used
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

const (
	// signalsCheck is how often a replica looks which sessions have changed, for events that were lost. A signal is kept
	// for twice as long.
	signalsCheck = signalTime / 2
	// changesKept is for how long the set of changes is sure to have each (common.lua).
	changesKept = 5 * time.Minute
)

// changesSeen is how far a replica has read the sets of changes. It belongs to Run.
type changesSeen struct {
	sessions *Sessions
	last     time.Time          // when it read all of them
	score    map[string]float64 // by set: that of the newest change which was read
}

// readChanges returns the sessions that have changed since the last time. It takes a fixed number of commands, and is
// all a replica does for sessions on which nothing happens. lost says that some may be missing.
func (s *changesSeen) readChanges(ctx context.Context) (ids []string, lost bool, err error) {
	store, now := s.sessions.store, time.Now()
	sets := allChanges(store.keys)
	found := make([]*redis.ZSliceCmd, len(sets))
	err = store.doRepeated(ctx, "session changes", func(ctx context.Context) error {
		p := store.client.Pipeline()
		for i, set := range sets {
			found[i] = p.ZRangeByScoreWithScores(ctx, set, &redis.ZRangeBy{Min: "(" + strconv.FormatFloat(s.score[set], 'f', 0, 64), Max: "+inf"})
		}
		_, err := p.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	score, trims := map[string]float64{}, store.client.Pipeline()
	for i, set := range sets {
		score[set] = s.score[set]
		for _, z := range found[i].Val() {
			ids, score[set] = append(ids, z.Member.(string)), z.Score
		}
		if score[set] > s.score[set] {
			old := int64(score[set]) - changesKept.Milliseconds()*1024 // as common.lua counts
			trims.ZRemRangeByScore(ctx, set, "-inf", strconv.FormatInt(old, 10))
		}
	}
	if trims.Len() > 0 {
		_, _ = trims.Exec(ctx) // the next change is another try
	}
	lost = !s.last.IsZero() && now.Sub(s.last) >= changesKept
	s.last, s.score = now, score
	return ids, lost, nil
}

// lookForChanges looks after the sessions known here that have changed, and wakes those who watch them.
func (s *changesSeen) lookForChanges(ctx context.Context) {
	c := s.sessions
	ids, lost, err := s.readChanges(ctx)
	if err != nil {
		c.store.log.DebugContext(ctx, "changes of sessions were not looked for", "err", err)
		return // the next tick tries again
	}
	if lost {
		ids = knownIDs(c)
	}
	c.mu.Lock()
	ids = slices.DeleteFunc(ids, func(id string) bool { return c.known[id] == nil })
	c.mu.Unlock()
	for ids := range slices.Chunk(ids, 100) {
		for _, id := range ids {
			c.doubtState(id)
			c.wakeWatchers(id)
		}
		if !c.lookAfter(ctx, ids, false) {
			s.last, s.score = time.Time{}, nil // all that is kept
			return
		}
	}
}
