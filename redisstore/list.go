package redisstore

import (
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

const (
	// listSlack is how much longer than the ttl of its tasks a list lives: a task may run for longer, and
	// renews it at its end only.
	listSlack = 3 * 24 * time.Hour
	// youth is how long an entry is left alone while its task is missing: the entry is written before the
	// task.
	youth = 10 * time.Minute
	// At every sweepEvery entries, sweepSize entries of a list are looked at. sweepSize is larger, so
	// that a list that clients leave unread stays about as long as it has tasks.
	sweepEvery, sweepSize = 64, 128
)

// listTask puts a task on a list, if it has one, and lets the list live longer than the task.
func (s *Store) listTask(ctx context.Context, listKey string, t shim.Task) error {
	if listKey == "" {
		return nil
	}
	a := &argv{}
	created := ""
	if !t.CreatedAt.IsZero() {
		created = strconv.FormatInt(t.CreatedAt.UnixMilli(), 10)
	}
	a.add(string(t.ID), created, millis(t.TTL+t.Retain+listSlack))
	v, err := indexScript.runOn(ctx, s.client, []string{s.keys.list(listKey)}, a)
	if err != nil {
		return err
	}
	if n, _ := strconv.ParseInt(v[1], 10, 64); created == "" && n%sweepEvery == 0 {
		s.sweepList(ctx, listKey, n)
	}
	return nil
}

// sweepList looks at some entries in the older half of a list with n entries, and removes those without a task.
// A later sweep repeats what fails.
func (s *Store) sweepList(ctx context.Context, listKey string, n int64) {
	from := rand.N(max(1, n/2-sweepSize))
	ids, err := s.client.ZRange(ctx, s.keys.list(listKey), from, from+sweepSize-1).Result()
	if err != nil {
		return
	}
	if gone, err := findGone(ctx, s, ids); err == nil {
		s.pruneEntries(ctx, listKey, gone)
	}
}

// findGone returns the ids that have no task.
func findGone(ctx context.Context, s *Store, ids []string) (gone []string, err error) {
	p := s.client.Pipeline()
	there := make([]*redis.IntCmd, len(ids))
	for i, id := range ids {
		there[i] = p.Exists(ctx, s.keys.task(shim.ID(id)))
	}
	_, err = p.Exec(ctx)
	for i, id := range ids {
		if err == nil && there[i].Val() == 0 {
			gone = append(gone, id)
		}
	}
	return gone, err
}

// entry is a place on a list: the creation time in microseconds, and among equals the id.
type entry struct {
	created int64
	id      shim.ID
}

// spellCursor spells the place for clients.
func (e entry) spellCursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(e.created, 10) + " " + string(e.id)))
}

// parseCursor is the reverse.
func parseCursor(cursor string) (entry, error) {
	if cursor == "" {
		return entry{created: -1}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	created, id, _ := strings.Cut(string(b), " ")
	n, bad := strconv.ParseInt(created, 10, 64)
	_, unknown := shim.ParseID(id)
	e := entry{n, shim.ID(id)}
	if err != nil || bad != nil || n < 0 || unknown != nil || e.spellCursor() != cursor {
		return entry{}, shim.ErrCursor
	}
	return e, nil
}

// List implements shim.Store. It looks for one task more than asked for, which tells whether there is another
// page.
func (s *Store) List(ctx context.Context, listKey, cursor string, n int) (page []shim.Task, next string, err error) {
	at, err := parseCursor(cursor)
	if err != nil || listKey == "" {
		return nil, "", err
	}
	n = max(n, 1)
	err = s.doRepeated(ctx, "list", func(ctx context.Context) (err error) {
		f := search{s: s.Overview(), q: shim.Query{Oldest: true, Limit: n + 1}, list: listKey, keys: []string{s.keys.list(listKey)}}
		if page, next, err = f.fillPage(ctx, at); len(page) > n {
			page, next = page[:n], f.places[n-1].spellCursor()
		}
		return err
	})
	return page, next, err
}

// pageBytes is about how many bytes of records are read for a page: a record may have questions of some MiB.
const pageBytes = 8 << 20

// sizesOf returns about how many bytes the summaries of entries have, where these are many.
func sizesOf(ctx context.Context, s *Store, entries []entry) ([]int64, error) {
	p := s.client.Pipeline()
	questions, progress := make([]*redis.IntCmd, len(entries)), make([]*redis.IntCmd, len(entries))
	for i, e := range entries {
		questions[i], progress[i] = p.HStrLen(ctx, s.keys.task(e.id), fieldQuestions), p.HStrLen(ctx, s.keys.task(e.id), fieldProgress)
	}
	if _, err := p.Exec(ctx); err != nil && !hasPrefix(err, wrongType) {
		return nil, err
	}
	sizes := make([]int64, len(entries))
	for i := range entries {
		sizes[i] = questions[i].Val() + progress[i].Val()
	}
	return sizes, nil
}

// readRecords reads the tasks of the first entries that fit into so many bytes, or of one, with two round trips; nil for a
// task that is gone or cannot be read. gone lists the ids without a task. It returns what is left of the bytes.
func readRecords(ctx context.Context, s *Store, entries []entry, left int64) (tasks []*shim.Task, gone []string, rest int64, err error) {
	sizes, err := sizesOf(ctx, s, entries)
	if err != nil {
		return nil, nil, 0, err
	}
	for i, n := range sizes {
		if left -= n; left < 0 {
			entries = entries[:max(1, i)]
			break
		}
	}
	tasks, gone, err = readAll(ctx, s, entries)
	return tasks, gone, left, err
}

// readAll is readRecords of any size, with one round trip.
func readAll(ctx context.Context, s *Store, entries []entry) (tasks []*shim.Task, gone []string, err error) {
	p := s.client.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(entries))
	for i, e := range entries {
		cmds[i] = s.hmget(ctx, e.id, shim.Summary)
		_ = p.Process(ctx, cmds[i])
	}
	if _, err := p.Exec(ctx); err != nil && !hasPrefix(err, wrongType) {
		return nil, nil, err
	}
	tasks = make([]*shim.Task, len(entries))
	for i, e := range entries {
		err := recordError(e.id, cmds[i].Err())
		var t shim.Task
		if err == nil {
			t, err = decode(e.id, shim.Summary, cmds[i].Val())
		}
		switch {
		case err == nil:
			tasks[i] = &t
		case errors.Is(err, shim.ErrNotFound):
			gone = append(gone, string(e.id))
		case !s.skipUnreadable(ctx, err):
			return nil, nil, err
		}
	}
	return tasks, gone, nil
}

// pruneEntries removes entries without a task. If that fails, the next reader prunes them.
func (s *Store) pruneEntries(ctx context.Context, listKey string, gone []string) {
	if len(gone) == 0 {
		return
	}
	a := &argv{}
	a.addInt(ms(youth))
	addList(a, gone)
	_, _ = pruneScript.runOn(ctx, s.client, []string{s.keys.list(listKey)}, a)
}
