package redisstore

import (
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

const (
	// listSlack is how much longer than its tasks a list lives, so that it never
	// ends before one, even where renewing it comes late.
	listSlack = 24 * time.Hour
	// youth is how long an entry without a task is left alone: the entry is
	// written before the task.
	youth = 10 * time.Minute
	// sweepEvery is after how many entries some of a list are looked through, and
	// sweepSize how many: more than are added, so that a list that nobody reads
	// stays about as long as it has tasks.
	sweepEvery, sweepSize = 64, 128
	// sweepFull is the least time between two looks at a list whose tasks take as much
	// as they may.
	sweepFull = 10 * time.Second
	// countSlack is how much longer than a task that runs its bytes count, so that they
	// do not stop counting where the time of the task is put off late.
	countSlack = time.Minute
)

// list puts a task on its list, and has the list live longer than the task. bytes is what
// the task takes, "" if that is not counted. A task that is not counted yet and does not fit
// is refused with a *shim.BusyError.
func (s *Store) list(ctx context.Context, t shim.Task, bytes string) error {
	if t.ListKey == "" {
		return nil
	}
	a := &argv{}
	created := ""
	if !t.CreatedAt.IsZero() {
		created = strconv.FormatInt(t.CreatedAt.UnixMilli(), 10)
	}
	a.add(string(t.ID), created, millis(t.TTL+t.Retain+listSlack), millis(youth), bytes, millis(s.counted(t)))
	a.addInt(t.Room, ms(sweepFull))
	v, err := indexScript.run(ctx, s.client, s.keys.lists(t.ListKey), a)
	if err != nil {
		return err
	}
	old, _ := strconv.ParseInt(v[2], 10, 64)
	if v[0] == codeFull {
		if v[1] != "" && old > 0 {
			s.sweep(ctx, t.ListKey, old)
		}
		return &shim.BusyError{Key: "max_stored_bytes_per_owner", Limit: "bytes in the tasks of this caller", RetryAfter: sweepFull}
	}
	if total, _ := strconv.ParseInt(v[1], 10, 64); created == "" && total%sweepEvery == 0 && old > 0 {
		s.sweep(ctx, t.ListKey, old)
	}
	return nil
}

// sweep looks at some of the oldest n entries of a list, removes those without a task, and
// corrects how many bytes the others take. It is housekeeping: what fails today is done
// another time.
func (s *Store) sweep(ctx context.Context, listKey string, n int64) {
	from := int64(0)
	if n > sweepSize {
		from = rand.N(n)
	}
	ids, err := s.client.ZRange(ctx, s.keys.list(listKey), from, min(from+sweepSize, n)-1).Result()
	if err != nil {
		return
	}
	p := s.client.Pipeline()
	found := make([]*redis.SliceCmd, len(ids))
	for i, id := range ids {
		found[i] = p.HMGet(ctx, s.keys.task(shim.ID(id)), fieldStatus, fieldTold, fieldCreated, fieldTTL, fieldRetain)
	}
	if _, err := p.Exec(ctx); err != nil {
		return
	}
	var gone []shim.ID
	var counts []string
	for i, id := range ids {
		r := row{values: texts(found[i].Val())}
		t := shim.Task{ID: shim.ID(id), Status: shim.Status(r.text())}
		told := r.text()
		t.CreatedAt, t.TTL, t.Retain = r.time(), r.duration(), r.duration()
		switch {
		case t.Status == "":
			gone = append(gone, t.ID)
		case told != "":
			counts = append(counts, id, told, s.countedUntil(t))
		}
	}
	s.prune(ctx, listKey, gone)
	s.count(ctx, listKey, counts)
}

// texts are the values of an HMGET, "" where there is none.
func texts(values []any) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i], _ = v.(string)
	}
	return out
}

// counted is how long after its creation the bytes of a task count: as long as it is kept
// for certain. While it runs, that is put off.
func (s *Store) counted(t shim.Task) time.Duration {
	if t.Status.Final() {
		return t.TTL + s.opts.slack
	}
	return t.TTL + t.Retain + countSlack
}

// countedUntil is when that is over, in ms.
func (s *Store) countedUntil(t shim.Task) string {
	return strconv.FormatInt(t.CreatedAt.UnixMilli()+ms(s.counted(t)), 10)
}

// count says how many bytes tasks of a list take: for each its id, its bytes, and until when
// they count. If it fails, it is done when the task says so again, or by a sweep, and the
// count of each task ends by itself.
func (s *Store) count(ctx context.Context, listKey string, counts []string) {
	if listKey == "" || len(counts) == 0 {
		return
	}
	a := &argv{}
	addList(a, counts)
	err := s.do(ctx, "count", func(ctx context.Context) error {
		_, err := countScript.run(ctx, s.writes, s.keys.lists(listKey), a)
		return err
	})
	if err != nil {
		s.log.DebugContext(ctx, "what tasks take was not counted", "error", err)
	}
}

// overhead is how many bytes a task counts for besides what may be large, and its places on
// lists. The scripts know it, too.
const overhead = 2048

// weight is how many bytes a new task takes, as text, or "" if it is of nobody who is known by
// name.
func weight(t shim.Task, begin []shim.Batch) string {
	if t.Owner == "" || t.ListKey == "" {
		return ""
	}
	n := overhead + len(t.StatusMessage) + len(encodeProgress(t.Progress)) + len(encodeQuestions(t.Questions)) + len(t.Call) + len(t.Checkpoint)
	if t.Outcome != nil {
		n += len(t.Outcome.Result) + len(t.Outcome.Error)
	}
	for _, b := range begin {
		n += len(b.Content)
		for _, s := range b.Segments {
			n += len(s)
		}
	}
	return strconv.Itoa(n)
}

// entry is a place on a list: creation time in microseconds, and among equals the id.
type entry struct {
	created int64
	id      shim.ID
}

// after reports whether e comes later on the list than o.
func (e entry) after(o entry) bool {
	return e.created > o.created || e.created == o.created && e.id > o.id
}

// cursor spells a place for clients.
func (e entry) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(e.created, 10) + " " + string(e.id)))
}

// parseCursor reads it.
func parseCursor(cursor string) (entry, error) {
	if cursor == "" {
		return entry{created: -1}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	created, id, _ := strings.Cut(string(b), " ")
	n, bad := strconv.ParseInt(created, 10, 64)
	_, unknown := shim.ParseID(id)
	e := entry{n, shim.ID(id)}
	if err != nil || bad != nil || n < 0 || unknown != nil || e.cursor() != cursor {
		return entry{}, shim.ErrCursor
	}
	return e, nil
}

// List implements shim.Store. It looks for one task more than asked for, because
// only that tells whether there is another page.
func (s *Store) List(ctx context.Context, listKey, cursor string, n int) ([]shim.Task, string, error) {
	at, err := parseCursor(cursor)
	if err != nil || listKey == "" {
		return nil, "", err
	}
	n = max(n, 1)
	var page []shim.Task
	var last entry
	for more := true; more && len(page) <= n; {
		var found []listed
		if found, at, more, err = s.listed(ctx, listKey, at, n+1); err != nil {
			return nil, "", err
		}
		for _, f := range found {
			if page = append(page, f.task); len(page) == n {
				last = f.entry
			}
		}
	}
	if len(page) <= n {
		return page, "", nil
	}
	return page[:n], last.cursor(), nil
}

// listed is a task on its list.
type listed struct {
	entry entry
	task  shim.Task
}

// listed reads some tasks of a list that come after a place. It returns the place
// to go on from, and whether there may be more.
func (s *Store) listed(ctx context.Context, listKey string, at entry, n int) (found []listed, next entry, more bool, err error) {
	next = at
	err = s.do(ctx, "list", func(ctx context.Context) error {
		entries, rest, err := s.entries(ctx, listKey, at, n)
		if err != nil {
			return err
		}
		if more = rest; len(entries) > 0 {
			next = entries[len(entries)-1]
		}
		found, err = s.look(ctx, listKey, entries)
		return err
	})
	return found, next, more, err
}

// entries reads some entries of a list that come after a place, and says whether
// there may be more. Entries of the very time of the place are read again and left
// out, so it reads on until it is past them.
func (s *Store) entries(ctx context.Context, listKey string, at entry, n int) ([]entry, bool, error) {
	n = max(n, 16)
	for offset := 0; ; offset += n {
		z, err := s.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: s.keys.list(listKey), ByScore: true, Start: at.created, Stop: "+inf",
			Offset: int64(offset), Count: int64(n),
		}).Result()
		if err != nil {
			return nil, false, err
		}
		var out []entry
		for _, m := range z {
			id, _ := m.Member.(string)
			if e := (entry{int64(m.Score), shim.ID(id)}); e.after(at) {
				out = append(out, e)
			}
		}
		if len(out) > 0 || len(z) < n {
			return out, len(z) == n, nil
		}
	}
}

// look reads the tasks of some entries: only what its own record says decides
// whether a task is on this list. Entries without a task are pruned.
func (s *Store) look(ctx context.Context, listKey string, entries []entry) ([]listed, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	p := s.client.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(entries))
	for i, e := range entries {
		cmds[i] = s.hmget(ctx, e.id, shim.Summary)
		_ = p.Process(ctx, cmds[i])
	}
	if _, err := p.Exec(ctx); err != nil {
		return nil, err
	}
	var found []listed
	var gone []shim.ID
	for i, e := range entries {
		t, err := decode(e.id, shim.Summary, cmds[i].Val())
		switch {
		case errors.Is(err, shim.ErrNotFound):
			gone = append(gone, e.id)
		case err != nil:
			return nil, err
		case t.Visible && t.ListKey == listKey:
			found = append(found, listed{e, t})
		}
	}
	s.prune(ctx, listKey, gone)
	return found, nil
}

// prune removes entries without a task; if that fails, the next reader does it.
func (s *Store) prune(ctx context.Context, listKey string, gone []shim.ID) {
	if len(gone) == 0 {
		return
	}
	a := &argv{}
	a.addInt(ms(youth))
	addList(a, gone)
	_, _ = pruneScript.run(ctx, s.client, s.keys.lists(listKey), a)
}
