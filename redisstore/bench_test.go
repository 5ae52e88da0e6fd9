package redisstore

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// BenchmarkStore measures the operations that traffic is made of, next to a bare
// GET over the same kind of client: what a round trip costs anyway.
//
//	go test ./redisstore -run - -bench Store -benchmem
func BenchmarkStore(b *testing.B) {
	redis := redistest.Start(b)
	b.Run("embedded", func(b *testing.B) { benchmark(b, openTest(b, "embedded", testOptions())) })
	b.Run("redis", func(b *testing.B) { benchmark(b, openTest(b, redis.URL(), testOptions())) })
}

func benchmark(b *testing.B, s *Store) {
	ctx := b.Context()
	must(b, s.client.Set(ctx, "bare", strings.Repeat("x", 400), 0).Err())
	b.Run("bare GET", func(b *testing.B) {
		for b.Loop() {
			must(b, s.client.Get(ctx, "bare").Err())
		}
	})
	b.Run("bare GET parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				must(b, s.client.Get(ctx, "bare").Err())
			}
		})
	})
	running := create(b, s, newTask(b))
	b.Run("Get", func(b *testing.B) {
		for b.Loop() {
			read(b, s, running.ID, shim.Summary)
		}
	})
	b.Run("Get parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				read(b, s, running.ID, shim.Summary)
			}
		})
	})
	// More readers than processors: what pipeliner.go is for.
	b.Run("Get crowded", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				read(b, s, running.ID, shim.Summary)
			}
		})
	})
	b.Run("Create", func(b *testing.B) {
		for b.Loop() {
			task := newTask(b)
			task.Visible, task.TTL, task.ListKey = false, time.Second, "" // leaves nothing behind
			create(b, s, task)
		}
	})
	b.Run("Create listed", func(b *testing.B) {
		for b.Loop() {
			task := newTask(b)
			task.Visible, task.TTL = false, time.Second
			create(b, s, task)
		}
	})
	message := "working"
	b.Run("Apply", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Apply(ctx, running.ID, &held, shim.Change{Op: string(newID(b)), StatusMessage: &message})
			must(b, err)
		}
	})
	b.Run("Append", func(b *testing.B) {
		piece := shim.Batch{Content: json.RawMessage(`[{"type":"text","text":"` + strings.Repeat("x", 100) + `"}]`)}
		task := create(b, s, newTask(b))
		for n := int64(0); b.Loop(); n++ {
			must(b, s.Append(ctx, task.ID, held, shim.Position(n), nil, piece))
		}
	})
	benchmarkOutcomes(b, s)
}

func benchmarkOutcomes(b *testing.B, s *Store) {
	for name, size := range map[string]int{"1 KB": 1 << 10, "20 MB": 20 << 20} {
		task := create(b, s, newTask(b))
		_, err := s.Apply(b.Context(), task.ID, &held, shim.Change{
			Op: "end", To: shim.Completed, Outcome: &shim.Outcome{Result: json.RawMessage(strings.Repeat("x", size))},
		})
		must(b, err)
		b.Run("Get outcome of "+name, func(b *testing.B) {
			for b.Loop() {
				read(b, s, task.ID, shim.WithOutcome)
			}
		})
		b.Run("Get summary of "+name, func(b *testing.B) {
			for b.Loop() {
				read(b, s, task.ID, shim.Summary)
			}
		})
	}
}
