package redisstore

import (
	"path/filepath"
	"runtime"
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
	result := make([]byte, 1024)
	for i := range result {
		result[i] = 'x'
	}
	done := &shim.Outcome{Result: append(append([]byte(`{"content":[{"type":"text","text":"`), result...), `"}]}`...)}
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
	if err != nil {
		b.Fatal(err)
	}
	endTasks(b, s, tasks)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		before := cpuTime(b)
		b.StartTimer()
		s, err := Open(b.Context(), "file:"+path, o)
		b.StopTimer()
		cpu += cpuTime(b) - before
		if err != nil {
			b.Fatal(err)
		}
		if n := len(s.embedded.recorder.asleep.sleepingKeys()); n < tasks {
			b.Fatalf("%d keys", n)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
}

// cpuTime is how much this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
