package redisstore

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"
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

// Of commands that go together one fails for a reason of its own. The others wait for the disk all the same, and are told
// that it is full.
func TestFileOnAFullDiskAmongErrors(t *testing.T) {
	t.Parallel()
	var d disk
	s := fileStore(t, t.TempDir(), d.options())
	must(t, s.client.RPush(t.Context(), "list", "a").Err())
	d.full.Store(true)
	p := s.client.Pipeline()
	wrote, wrong := p.HSet(t.Context(), "hash", "a", "b"), p.HGet(t.Context(), "list", "a")
	_, err := p.Exec(t.Context())
	if !hasPrefix(err, wrongType) || !hasPrefix(wrong.Err(), wrongType) || !errors.Is(wrote.Err(), shim.ErrUnavailable) {
		t.Fatalf("the pipeline %v, the write %v, the other %v", err, wrote.Err(), wrong.Err())
	}
}

// A key expires while a rewrite copies it. What is copied of it expires as well.
func TestFileCopiesWhatExpires(t *testing.T) {
	t.Parallel()
	o := testOptions()
	o.tick = time.Millisecond
	s := fileStore(t, t.TempDir(), o)
	r := s.embedded.recorder
	for range shimtest.Rounds(100) {
		p := s.client.Pipeline()
		p.HSet(t.Context(), "hash", "a", "b")
		p.PExpire(t.Context(), "hash", 2*time.Millisecond)
		_, err := p.Exec(t.Context())
		must(t, err)
		for r.redis.Exists("hash") {
			r.mu.Lock()
			r.unit = unit{}
			r.dumpKey("hash")
			copied := string(r.unit.entries)
			r.mu.Unlock()
			if strings.Contains(copied, "HSET") && !strings.Contains(copied, "PEXPIREAT") {
				t.Fatal("the copy would be there for ever")
			}
		}
	}
}
