package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

// Overview is the shim.Overview and the shim.Pauses of a Store.
type Overview struct{ *Store }

var (
	_ shim.Overview = Overview{}
	_ shim.Pauses   = Overview{}
)

// Overview returns the shim.Overview of the Store.
func (s *Store) Overview() Overview { return Overview{s} }

// Report implements shim.Overview. It uses the connections of heartbeats, which are not recorded in a folder.
// In front of the report stands when it was made, and until when it counts, by the clock of the replica.
func (s Overview) Report(ctx context.Context, r shim.Replica, about []byte, keep time.Duration) error {
	now := time.Now()
	said := fmt.Appendf(nil, "%d %d %s", now.UnixMilli(), now.Add(keep).UnixMilli(), about)
	return s.doRepeated(ctx, "report", func(ctx context.Context) error {
		return s.beats.HSet(ctx, s.keys.abouts(), string(r), said).Err()
	})
}

// parseReport reads what Report wrote.
func parseReport(said string) (at, until time.Time, about []byte) {
	first, rest, _ := strings.Cut(said, " ")
	second, text, _ := strings.Cut(rest, " ")
	n, _ := strconv.ParseInt(first, 10, 64)
	m, _ := strconv.ParseInt(second, 10, 64)
	return time.UnixMilli(n).UTC(), time.UnixMilli(m), []byte(text)
}

// Replicas implements shim.Overview. A replica that is gone and has no tasks soon loses its heartbeat; its
// report is kept.
func (s Overview) Replicas(ctx context.Context) (all []shim.Standing, err error) {
	err = s.doRepeated(ctx, "replicas", func(ctx context.Context) error {
		p := s.client.Pipeline()
		clock, beats, abouts := p.Time(ctx), p.HGetAll(ctx, s.keys.replicas()), p.HGetAll(ctx, s.keys.abouts())
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		all = nil
		for name, entry := range beats.Val() {
			b := parseBeat(entry)
			all = append(all, shim.Standing{
				Replica: shim.Replica(name), Alive: b.until.After(clock.Val()), Seen: time.UnixMilli(b.written).UTC(),
			})
		}
		if err := s.countRunning(ctx, all); err != nil {
			return err
		}
		all = addReports(all, abouts.Val())
		return nil
	})
	return all, err
}

// addReports adds the reports of replicas, and the replicas of which only a report is left. The result is in
// order.
func addReports(all []shim.Standing, abouts map[string]string) []shim.Standing {
	now := time.Now()
	for name, said := range abouts {
		at, until, about := parseReport(said)
		if !now.Before(until) {
			continue
		}
		i := slices.IndexFunc(all, func(s shim.Standing) bool { return s.Replica == shim.Replica(name) })
		if i < 0 {
			i = len(all)
			all = append(all, shim.Standing{Replica: shim.Replica(name), Seen: at})
		}
		all[i].About = about
	}
	slices.SortFunc(all, func(a, b shim.Standing) int { return cmp.Compare(a.Replica, b.Replica) })
	return all
}

// countRunning adds how many tasks each replica runs.
func (s Overview) countRunning(ctx context.Context, all []shim.Standing) error {
	p := s.client.Pipeline()
	running := make([][len(shards)]*redis.IntCmd, len(all))
	for i, one := range all {
		for j, tag := range shards {
			running[i][j] = p.ZCard(ctx, s.keys.run(tag, one.Replica))
		}
	}
	if _, err := p.Exec(ctx); err != nil {
		return err
	}
	for i := range all {
		for _, n := range running[i] {
			all[i].Running += int(n.Val())
		}
	}
	return nil
}

// sweepReports removes reports that have ceased to count.
func (s Overview) sweepReports(ctx context.Context) error {
	return s.doRepeated(ctx, "sweep", func(ctx context.Context) error {
		abouts, err := s.client.HGetAll(ctx, s.keys.abouts()).Result()
		if err != nil {
			return err
		}
		for name, said := range abouts {
			if _, until, _ := parseReport(said); time.Now().Before(until) {
				continue
			}
			if err := s.beats.HDel(ctx, s.keys.abouts(), name).Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Note implements shim.Overview.
func (s Overview) Note(ctx context.Context, r shim.Replica, minute time.Time, note []byte, keep time.Duration) error {
	key := s.keys.minute(minute.Unix() / 60)
	return s.doRepeated(ctx, "note", func(ctx context.Context) error {
		p := s.beats.Pipeline()
		p.HSet(ctx, key, string(r), note)
		p.PExpire(ctx, key, keep)
		_, err := p.Exec(ctx)
		return err
	})
}

// Notes implements shim.Overview.
func (s Overview) Notes(ctx context.Context, minutes []time.Time) (all []map[shim.Replica][]byte, err error) {
	err = s.doRepeated(ctx, "notes", func(ctx context.Context) error {
		p := s.client.Pipeline()
		cmds := make([]*redis.MapStringStringCmd, len(minutes))
		for i, m := range minutes {
			cmds[i] = p.HGetAll(ctx, s.keys.minute(m.Unix()/60))
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		all = make([]map[shim.Replica][]byte, len(minutes))
		for i, cmd := range cmds {
			all[i] = make(map[shim.Replica][]byte, len(cmd.Val()))
			for name, note := range cmd.Val() {
				all[i][shim.Replica(name)] = []byte(note)
			}
		}
		return nil
	})
	return all, err
}

// Changes implements shim.Overview. Each task has an event channel for its watchers; while an operator looks,
// a pattern has all these events come here.
func (s Overview) Changes(ctx context.Context, changed func()) error {
	ps := s.client.PSubscribe(ctx, s.keys.prefix+":{??}:ev:*", s.keys.goodbyes())
	defer ps.Close()
	defer context.AfterFunc(ctx, func() { _ = ps.Close() })() // Receive ignores the end of ctx
	for ctx.Err() == nil {
		_, err := ps.Receive(ctx)
		if errors.Is(err, redis.ErrClosed) {
			break
		}
		if err != nil { // it connects again by itself
			_ = work.Pause(ctx, time.Second)
		}
		changed()
	}
	return context.Cause(ctx)
}

// sweepAll is how many entries of a set Sweep reads at once.
const sweepAll = 1000

// Sweep implements shim.Overview. It goes through one of the sets of all tasks, and on to the next while most
// entries are gone: so the sets hold about as many entries as there are tasks. The list of unknown outcomes
// is short, so Sweep reads it each time.
func (s Overview) Sweep(ctx context.Context) error {
	if err := s.sweepReports(ctx); err != nil {
		return err
	}
	if _, _, err := s.sweepSet(ctx, s.keys.unknown()); err != nil {
		return err
	}
	first := rand.N(len(s.begins))
	for i := range s.begins {
		seen, gone, err := s.sweepSet(ctx, s.keys.all(s.begins[(first+i)%len(s.begins)]))
		if err != nil || 2*gone <= seen {
			return err
		}
	}
	return nil
}

// sweepSet removes expired tasks from a set. An id is used once, except for a task that the store had lost:
// if that is written again just now, operators may miss it until it runs again.
func (s Overview) sweepSet(ctx context.Context, key string) (seen, gone int, err error) {
	for at := int64(0); ; at += sweepAll {
		var ids, old []string
		err := s.doRepeated(ctx, "sweep", func(ctx context.Context) (err error) {
			if ids, err = s.client.ZRange(ctx, key, at, at+sweepAll-1).Result(); err != nil || len(ids) == 0 {
				return err
			}
			if old, err = findGone(ctx, s.Store, ids); len(old) > 0 {
				err = s.client.ZRem(ctx, key, old).Err()
			}
			return err
		})
		seen, gone = seen+len(ids), gone+len(old)
		if at -= int64(len(old)); err != nil || len(ids) < sweepAll {
			return seen, gone, err
		}
	}
}

// Pause implements shim.Pauses.
func (s Overview) Pause(ctx context.Context, p shim.Pause) (shim.Pause, error) {
	a := &argv{}
	a.add(spellPaused(p), p.By, s.keys.goodbyes())
	err := s.doRepeated(ctx, "pause", func(ctx context.Context) error {
		v, err := pauseScript.runOn(ctx, s.client, []string{s.keys.paused()}, a)
		if err == nil {
			p = parsePaused(spellPaused(p), v[1])
		}
		return err
	})
	return p, err
}

// Resume implements shim.Pauses.
func (s Overview) Resume(ctx context.Context, p shim.Pause) error {
	a := &argv{}
	a.add(spellPaused(p), s.keys.goodbyes())
	return s.doRepeated(ctx, "resume", func(ctx context.Context) error {
		_, err := resumeScript.runOn(ctx, s.client, []string{s.keys.paused()}, a)
		return err
	})
}

// Paused implements shim.Pauses.
func (s Overview) Paused(ctx context.Context) (all []shim.Pause, err error) {
	err = s.doRepeated(ctx, "paused", func(ctx context.Context) error {
		notes, err := s.client.HGetAll(ctx, s.keys.paused()).Result()
		all = nil
		for _, what := range slices.Sorted(maps.Keys(notes)) {
			all = append(all, parsePaused(what, notes[what]))
		}
		return err
	})
	return all, err
}

// spellPaused names what is paused: the names of upstreams have no slash.
func spellPaused(p shim.Pause) string { return p.Upstream + "/" + p.Tool }

// parsePaused reads an entry of the hash.
func parsePaused(what, note string) (p shim.Pause) {
	p.Upstream, p.Tool, _ = strings.Cut(what, "/")
	since, by, _ := strings.Cut(note, " ")
	ms, _ := strconv.ParseInt(since, 10, 64)
	p.By, p.Since = by, time.UnixMilli(ms).UTC()
	return p
}

// Condition is how the store is, for operators. What is not known is zero.
type Condition struct {
	// Addresses are those of Redis, or of its sentinels.
	Addresses []string
	// Latency is that of a PING.
	Latency time.Duration
	// Masters are the processes of Redis that take writes. UsedMemory and MaxMemory are in bytes, of all together;
	// a MaxMemory of 0 is no limit.
	Masters               int
	UsedMemory, MaxMemory int64
	// Replicas is how many replicas of Redis are connected to a master, where that has fewest.
	Replicas int
	// FolderBytes is the size of the folder.
	FolderBytes int64
}

// Condition asks for how the store is. folder is "" for none.
func (s Overview) Condition(ctx context.Context, folder string) (c Condition, err error) {
	if s.embedded == nil {
		c.Addresses = s.addrs
	}
	begin := time.Now()
	if err := s.client.Ping(ctx).Err(); err != nil {
		return c, err
	}
	c.Latency = time.Since(begin)
	if folder != "" {
		return c, filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			if info, gone := entry.Info(); gone == nil { // a file may go meanwhile
				c.FolderBytes += info.Size()
			}
			return nil
		})
	}
	if s.embedded != nil {
		return c, nil
	}
	var mu sync.Mutex
	ask := func(ctx context.Context, master *redis.Client) error {
		text, err := master.Info(ctx).Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		c.addMaster(text)
		return nil
	}
	switch client := s.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, ask)
	case *redis.Client:
		err = ask(ctx, client)
	}
	return c, err
}

// addMaster adds the INFO of a master.
func (c *Condition) addMaster(info string) {
	number := func(name string) int64 {
		_, rest, _ := strings.Cut("\n"+info, "\n"+name+":")
		line, _, _ := strings.Cut(rest, "\n")
		n, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64) // 0 where Redis does not say it
		return n
	}
	replicas := int(number("connected_slaves"))
	if c.Masters == 0 {
		c.Replicas = replicas
	}
	c.Masters, c.Replicas = c.Masters+1, min(c.Replicas, replicas)
	c.UsedMemory, c.MaxMemory = c.UsedMemory+number("used_memory"), c.MaxMemory+number("maxmemory")
}
