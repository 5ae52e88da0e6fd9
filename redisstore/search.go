package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

// Search goes through sorted sets of tasks by creation, a page at a time, and reads the records of a page
// with one round trip. The query decides which sets: the lists of one owner, the list of unknown outcomes,
// the tasks that replicas run, or all tasks, in 16 sets (256 in a cluster).

const (
	// searchTime bounds one Search, and searchStep the records that it reads at once.
	searchTime = 400 * time.Millisecond
	searchStep = 2000
	// leastRead is the least number of entries that are read of a set.
	leastRead = 8
)

// search is one Search, or one List.
type search struct {
	s    Overview
	q    shim.Query
	keys []string
	unit int64   // how many units of the scores make a ms
	held []entry // in place of keys: the tasks that replicas run, in order
	// list is the list key of a List, which shows the visible tasks that are on this list by their records, and
	// prunes entries without a task.
	list   string
	places []entry // of the tasks of the page
}

// Search implements shim.Overview.
func (s Overview) Search(ctx context.Context, q shim.Query) (page []shim.Task, next string, err error) {
	at, err := parseCursor(q.Cursor)
	if err != nil {
		return nil, "", err
	}
	err = s.doRepeated(ctx, "search", func(ctx context.Context) error {
		f := search{s: s, q: q, unit: 1}
		if err := f.chooseSets(ctx); err != nil {
			return err
		}
		from := at
		if q.Cursor == "" {
			from = f.firstPlace()
		}
		page, next, err = f.fillPage(ctx, from)
		return err
	})
	return page, next, err
}

func (f *search) chooseSets(ctx context.Context) error {
	running := len(f.q.States) > 0 && !slices.ContainsFunc(f.q.States, shim.State.Ended)
	switch {
	case f.q.Replica != "":
		return f.readRunning(ctx, string(f.q.Replica))
	case running:
		beating, err := f.s.client.HKeys(ctx, f.s.keys.replicas()).Result() // those that are gone included
		if err != nil {
			return err
		}
		return f.readRunning(ctx, beating...)
	case slices.Equal(f.q.States, []shim.State{shim.StateUnknown}):
		f.keys, f.unit = []string{f.s.keys.unknown()}, 1000
	case len(f.q.Lists) > 0:
		f.unit = 1000
		for _, l := range f.q.Lists {
			f.keys = append(f.keys, f.s.keys.list(l))
		}
	default:
		f.keys = []string{}
		for _, begin := range f.s.begins {
			n := min(len(f.q.Prefix), len(begin))
			if begin[:n] == f.q.Prefix[:n] {
				f.keys = append(f.keys, f.s.keys.all(begin))
			}
		}
	}
	return nil
}

// readRunning reads the tasks that replicas run, with their creation times.
func (f *search) readRunning(ctx context.Context, replicas ...string) error {
	for _, r := range replicas {
		for part := range shim.Parts {
			held, err := f.s.readHeld(ctx, shim.Replica(r), part)
			if err != nil {
				return err
			}
			for _, h := range held {
				if strings.HasPrefix(string(h.ID), f.q.Prefix) {
					f.held = append(f.held, entry{id: h.ID})
				}
			}
		}
	}
	for some := range slices.Chunk(f.held, searchStep) {
		p := f.s.client.Pipeline()
		made := make([]*redis.StringCmd, len(some))
		for i := range some {
			made[i] = p.HGet(ctx, f.s.keys.task(some[i].id), fieldCreated)
		}
		if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) && !hasPrefix(err, wrongType) {
			return err
		}
		for i := range some { // a task that has ended meanwhile is left out when its record is read
			some[i].created, _ = strconv.ParseInt(made[i].Val(), 10, 64)
		}
	}
	slices.SortFunc(f.held, f.compareEntries)
	f.held = slices.Compact(f.held) // a task that was adopted meanwhile is in two sets
	return nil
}

// compareEntries compares two entries in the order of the query.
func (f *search) compareEntries(a, b entry) int {
	n := cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.id, b.id))
	if f.q.Oldest {
		return n
	}
	return -n
}

// scoreBounds returns the least and the greatest score that the query may let through. The entry on a list is
// a little older than its task.
func (f *search) scoreBounds() (least, most int64) {
	least, most = 0, 1<<53 // what a score can hold exactly
	early := int64(0)
	if f.unit > 1 {
		early = youth.Milliseconds()
	}
	if !f.q.After.IsZero() {
		least = max(0, f.q.After.UnixMilli()-early) * f.unit
	}
	if !f.q.Before.IsZero() {
		most = f.q.Before.UnixMilli() * f.unit
	}
	return least, most
}

// firstPlace is a place before the first entry.
func (f *search) firstPlace() entry {
	least, most := f.scoreBounds()
	if f.q.Oldest {
		return entry{created: least - 1}
	}
	return entry{created: most + 1}
}

// fillPage reads from a place on until the page is full, pageBytes are read, the sets end, or, of a Search, searchTime is
// over.
func (f *search) fillPage(ctx context.Context, at entry) (page []shim.Task, next string, err error) {
	over, left := time.Now().Add(searchTime), int64(pageBytes)
	for step := max(f.q.Limit, leastRead); ; step = min(4*step, searchStep) {
		entries, more, err := f.nextEntries(ctx, at, step)
		if err != nil {
			return nil, "", err
		}
		tasks, gone, rest, err := readRecords(ctx, f.s.Store, entries, left)
		if err != nil {
			return nil, "", err
		}
		left = rest
		more, entries = more || len(tasks) < len(entries), entries[:len(tasks)]
		if f.list != "" { // else Sweep removes them
			f.s.pruneEntries(ctx, f.list, gone)
		}
		for i, e := range entries {
			at = e
			if t := tasks[i]; t != nil && f.isWanted(t) {
				page, f.places = append(page, *t), append(f.places, e)
			}
			if len(page) == f.q.Limit {
				more = more || i < len(entries)-1
				break
			}
		}
		switch {
		case !more:
			return page, "", nil
		case len(page) == f.q.Limit, left < 0, f.list == "" && time.Now().After(over):
			return page, at.spellCursor(), nil
		}
	}
}

// nextEntries returns about n entries behind a place, in order, and whether there are more.
func (f *search) nextEntries(ctx context.Context, at entry, n int) (found []entry, more bool, err error) {
	if f.keys == nil {
		i, _ := slices.BinarySearchFunc(f.held, at, f.compareEntries)
		found = f.held[i:]
		if len(found) > 0 && found[0] == at {
			found = found[1:]
		}
		return found[:min(n, len(found))], len(found) > n, nil
	}
	parts := make([]part, len(f.keys))
	for i, key := range f.keys {
		parts[i] = part{key: key}
	}
	if err := f.readSets(ctx, parts, at, max(leastRead, 2*n/max(1, len(f.keys)))); err != nil {
		return nil, false, err
	}
	// If a set has more entries, an unread one may come next behind the last one that was read.
	var end *entry
	for i := range parts {
		p := &parts[i]
		if last := len(p.found) - 1; p.more && (end == nil || f.compareEntries(p.found[last], *end) < 0) {
			end = &p.found[last]
		}
		found = append(found, p.found...)
	}
	slices.SortFunc(found, f.compareEntries)
	if end != nil {
		found = found[:1+slices.IndexFunc(found, func(e entry) bool { return e == *end })]
	}
	if len(found) > n {
		return found[:n], true, nil
	}
	return found, end != nil, nil
}

// part is the entries that were read of one set, behind a place, in order.
type part struct {
	key    string
	offset int
	found  []entry
	more   bool
}

// readSets reads up to n entries of each set, with one round trip. Entries with exactly the time of the place
// are read again, and those up to the place are left out; if all n are left out, the set is read on.
func (f *search) readSets(ctx context.Context, parts []part, at entry, n int) error {
	least, most := f.scoreBounds()
	if f.q.Oldest {
		least = max(least, at.created)
	} else {
		most = min(most, at.created)
	}
	start, stop := least, most
	if !f.q.Oldest {
		start, stop = most, least
	}
	pending := make([]*part, len(parts))
	for i := range parts {
		pending[i] = &parts[i]
	}
	for len(pending) > 0 {
		p := f.s.client.Pipeline()
		cmds := make([]*redis.ZSliceCmd, len(pending))
		for i, one := range pending {
			cmds[i] = p.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
				Key: one.key, ByScore: true, Rev: !f.q.Oldest, Start: start, Stop: stop, Offset: int64(one.offset), Count: int64(n),
			})
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		var again []*part
		for i, one := range pending {
			for _, z := range cmds[i].Val() {
				id, _ := z.Member.(string)
				if e := (entry{int64(z.Score), shim.ID(id)}); f.compareEntries(e, at) > 0 {
					one.found = append(one.found, e)
				}
			}
			one.more = len(cmds[i].Val()) == n
			if one.more && len(one.found) == 0 {
				one.offset += n
				again = append(again, one)
			}
		}
		pending = again
	}
	return nil
}

// isWanted reports whether the query lets a task through.
func (f *search) isWanted(t *shim.Task) bool {
	q := f.q
	if f.list != "" {
		return t.Visible && t.ListKey == f.list
	}
	tool := t.Tool
	if tool == "" || q.Tool == t.Method {
		tool = t.Method
	}
	return (q.Upstream == "" || q.Upstream == t.Upstream) && (q.Tool == "" || q.Tool == tool) &&
		(len(q.States) == 0 || slices.Contains(q.States, t.State())) && (q.Owner == nil || *q.Owner == t.Owner) &&
		(q.Replica == "" || q.Replica == t.Lease.Replica && !t.Status.Final()) && strings.HasPrefix(string(t.ID), q.Prefix) &&
		(q.EndedAfter.IsZero() || t.Status.Final() && !t.UpdatedAt.Before(q.EndedAfter)) &&
		(q.Before.IsZero() || t.CreatedAt.Before(q.Before)) && (q.After.IsZero() || !t.CreatedAt.Before(q.After))
}
