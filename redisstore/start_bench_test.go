//go:build unix

package redisstore

import (
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskgate/shim"
)

// endTasks makes so many tasks that have ended with a result of 1 kB.
func endTasks(b *testing.B, s *Store, tasks int64) {
	b.Helper()
	done := &shim.Outcome{Result: []byte(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 1024) + `"}]}`)}
	var left atomic.Int64
	left.Store(tasks)
	var writers sync.WaitGroup
	for range 64 {
		writers.Go(func() {
			for left.Add(-1) >= 0 {
				task, err := s.Create(b.Context(), newTask())
				if err == nil {
					_, err = s.Apply(b.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed, Outcome: done})
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// BenchmarkFileStart is a start over 20,000 tasks that have ended with results of 1 kB. CPU time
// counts all goroutines.
func BenchmarkFileStart(b *testing.B) {
	const tasks = 20_000
	path, o := filepath.Join(b.TempDir(), "store"), testOptions()
	s, err := Open(b.Context(), "file:"+path, o)
	must(b, err)
	endTasks(b, s, tasks)
	must(b, s.Close())
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		before := cpuTime(b)
		b.StartTimer()
		s, err := Open(b.Context(), "file:"+path, o)
		b.StopTimer()
		cpu += cpuTime(b) - before
		must(b, err)
		if n := len(s.embedded.recorder.asleep.sleepingKeys()); n < tasks {
			b.Fatalf("%d keys", n)
		}
		must(b, s.Close())
		b.StartTimer()
	}
	b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
}

// cpuTime is how much this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
