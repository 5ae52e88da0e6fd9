package main

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/proc"
)

// load is one prepared request, and what each answer to it contains.
type load struct {
	addr    string
	request []byte
	want    string
	process *proc.Process // whose processor time counts; nil for none
	beside  *proc.Process // one that works for it, whose time counts as well; nil for none
}

// sample is what one measurement found.
type sample struct {
	rate     float64 // requests per second
	p50, p99 time.Duration
	cpu      time.Duration // of the processes, for each request
}

// String is the sample as three cells of a table.
func (s sample) String() string {
	return fmt.Sprintf("%.0f | %s | %s", s.rate, short(s.p50), short(s.p99))
}

// withCPU is the sample as four cells.
func (s sample) withCPU() string { return s.String() + " | " + short(s.cpu) }

// warmUp is the part of the length that precedes the measurement.
const warmUp = 10

// measure does requests on so many connections, first to warm up and then for the given length.
func (l load) measure(conns int, length time.Duration) (sample, error) {
	workers, hangUp, err := l.dialWorkers(conns)
	defer hangUp()
	if err != nil {
		return sample{}, err
	}
	until := func(length time.Duration) func() bool {
		end := time.Now().Add(length)
		return func() bool { return time.Now().Before(end) }
	}
	if _, err := l.drive(workers, until(length/warmUp)); err != nil {
		return sample{}, err
	}
	before, err := l.cpu()
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	times, err := l.drive(workers, until(length))
	if err != nil {
		return sample{}, err
	}
	found := summarise(times, time.Since(begin))
	after, err := l.cpu()
	found.cpu = (after - before) / time.Duration(max(1, len(times)))
	return found, err
}

// cpu is the processor time of the processes so far.
func (l load) cpu() (sum time.Duration, err error) {
	for _, p := range []*proc.Process{l.process, l.beside} {
		if p == nil {
			continue
		}
		of, err := statOf(p.PID())
		if err != nil {
			return 0, err
		}
		sum += time.Duration(of.CPUTime() * float64(time.Second))
	}
	return sum, nil
}

// dialWorkers opens connections; hangUp closes them.
func (l load) dialWorkers(n int) (workers []*httpConn, hangUp func(), err error) {
	hangUp = func() {
		for _, w := range workers {
			w.Close()
		}
	}
	for range n {
		w, err := dialHTTP(l.addr, l.request)
		if err != nil {
			return workers, hangUp, err
		}
		workers = append(workers, w)
	}
	return workers, hangUp, nil
}

// doTimes does n requests, which are to be at least as many as the workers.
func (l load) doTimes(workers []*httpConn, n int) error {
	var made atomic.Int64
	made.Store(int64(len(workers))) // each does one without being asked
	_, err := l.drive(workers, func() bool { return made.Add(1) <= int64(n) })
	return err
}

// drive has each worker do requests while there are more to do, one at least, and returns how
// long each request took.
func (l load) drive(workers []*httpConn, more func() bool) ([]time.Duration, error) {
	var wg sync.WaitGroup
	times := make([][]time.Duration, len(workers))
	errs := make([]error, len(workers))
	want := []byte(l.want)
	for i, w := range workers {
		wg.Go(func() {
			times[i] = make([]time.Duration, 0, 1<<14)
			for begin := time.Now(); len(times[i]) == 0 || more(); {
				answer, err := w.do()
				if err == nil && !bytes.Contains(answer, want) {
					err = fmt.Errorf("the answer is %.300q", answer)
				}
				if err != nil {
					errs[i] = err
					return
				}
				end := time.Now()
				times[i] = append(times[i], end.Sub(begin))
				begin = end
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(times...), nil
}

// summarise sorts the times.
func summarise(times []time.Duration, elapsed time.Duration) sample {
	if len(times) == 0 {
		return sample{}
	}
	slices.Sort(times)
	return sample{
		rate: float64(len(times)) / elapsed.Seconds(),
		p50:  times[len(times)/2],
		p99:  times[len(times)*99/100],
	}
}

// median is that of each number of the samples by itself.
func median(samples []sample) sample {
	middle := func(value func(sample) float64) float64 {
		var list []float64
		for _, s := range samples {
			list = append(list, value(s))
		}
		slices.Sort(list)
		n := len(list)
		return (list[(n-1)/2] + list[n/2]) / 2
	}
	return sample{
		rate: middle(func(s sample) float64 { return s.rate }),
		p50:  time.Duration(middle(func(s sample) float64 { return float64(s.p50) })),
		p99:  time.Duration(middle(func(s sample) float64 { return float64(s.p99) })),
		cpu:  time.Duration(middle(func(s sample) float64 { return float64(s.cpu) })),
	}
}

// short is a duration in a unit that suits it.
func short(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.0f µs", float64(d)/float64(time.Microsecond))
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
