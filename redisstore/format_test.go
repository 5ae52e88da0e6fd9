package redisstore

import (
	"errors"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// TestFormats: what an older version has stored is read, and keeps the fields that nobody knows here; what a
// newer one has stored is listed and adopted by nobody, and stays as it is.
func TestFormats(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, url, testOptions())
			ids := bereaved(t, s, shards[3], shards[3], shards[3])
			same(t, "1", s.client.HGet(t.Context(), s.keys.task(ids[0]), fieldFormat).Val())
			older, newer := ids[1], ids[2]
			must(t, s.client.HDel(t.Context(), s.keys.task(older), fieldFormat).Err())
			must(t, s.client.HSet(t.Context(), s.keys.task(older), "unheard", "of").Err())
			must(t, s.client.HSet(t.Context(), s.keys.task(newer), fieldFormat, format+1).Err())
			before := s.client.HGetAll(t.Context(), s.keys.task(newer)).Val()

			page, _, err := s.List(t.Context(), "p:alice", "", 10)
			must(t, err)
			same(t, 2, len(page))
			if _, err := s.Get(t.Context(), newer, shim.Summary); !errors.Is(err, errNewer) {
				t.Errorf("a record of a newer version: %v", err)
			}
			got, err := heir(t, s, 10)
			must(t, err)
			same(t, 2, len(got))
			task, err := s.Get(t.Context(), older, shim.WithRun)
			must(t, err)
			_, err = s.Apply(t.Context(), older, &task.Lease, shim.Change{Op: "end", To: shim.Completed})
			must(t, err)
			same(t, "of", s.client.HGet(t.Context(), s.keys.task(older), "unheard").Val())
			same(t, before, s.client.HGetAll(t.Context(), s.keys.task(newer)).Val())

			c := sessionsOf(s, 10, time.Minute)
			rev, err := c.Make(t.Context(), "one", "alice", "", []byte("state"))
			must(t, err)
			key := s.keys.session("one")
			same(t, "1", s.client.HGet(t.Context(), key, fieldFormat).Val())
			must(t, s.client.HDel(t.Context(), key, fieldFormat).Err())
			state, again, err := sessionsOf(s, 10, time.Minute).Get(t.Context(), "one")
			must(t, err)
			same(t, "state", string(state))
			same(t, rev, again)
			must(t, s.client.HSet(t.Context(), key, fieldFormat, format+1).Err())
			if _, rev, err := sessionsOf(s, 10, time.Minute).Get(t.Context(), "one"); !errors.Is(err, errNewer) || rev != 0 {
				t.Errorf("a session of a newer version: revision %d, %v", rev, err)
			}
		})
	}
}
