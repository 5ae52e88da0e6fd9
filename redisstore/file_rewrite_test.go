package redisstore

import (
	"path/filepath"
	"testing"
)

// halfRewrite begins a rewrite. What it returns comes to the keys that there were, and ends it.
func halfRewrite(t *testing.T, s *Store) (finish func()) {
	t.Helper()
	r := s.embedded.recorder
	must(t, r.journal.Begin())
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(r.redis.Keys(), r.asleep.sleepingKeys()...)
	r.journal.Switch()
	return func() {
		t.Helper()
		r.mu.Lock()
		r.unit = unit{}
		for _, key := range all {
			r.dumpKey(key)
		}
		r.journal.Add(nil, r.unit.entries)
		r.mu.Unlock()
		must(t, r.journal.End(t.Context()))
	}
}

// An entry of a list is replaced when a rewrite has begun, and has not come to the list.
func TestFileReplacesInAListDuringARewrite(t *testing.T) {
	t.Parallel()
	path, o := filepath.Join(t.TempDir(), "store"), testOptions()
	s := fileStore(t, path, o)
	must(t, s.client.RPush(t.Context(), "list", "a", "b").Err())
	finish := halfRewrite(t, s)
	must(t, s.client.LSet(t.Context(), "list", 1, "c").Err())
	finish()
	same(t, contents(t, s), contents(t, fileStore(t, killed(t, path), o)))
}
