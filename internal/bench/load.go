package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// variant is one thing that is measured.
type variant struct {
	name string
	dial func() (worker, error)
	want []byte // what each answer contains
	// conns are the numbers of connections to measure it at; nil for those of the settings.
	conns []int
	rest  time.Duration // the pause after it, for work that goes on behind the answers
}

// at is how many connections the variant is measured at.
func (v variant) at(s settings) []int {
	if v.conns != nil {
		return v.conns
	}
	return s.conns
}

// sample is what one measurement found.
type sample struct {
	rate     float64 // requests per second
	p50, p99 time.Duration
}

// warmUp is the part of the length that precedes the measurement.
const warmUp = 10

// load runs as many workers as there are connections to be, first to warm up and
// then for the given length.
func load(ctx context.Context, v variant, conns int, length time.Duration) (sample, error) {
	workers := make([]worker, conns)
	for i := range workers {
		w, err := v.dial()
		if err != nil {
			return sample{}, fmt.Errorf("%s: %w", v.name, err)
		}
		defer w.Close()
		workers[i] = w
	}
	if _, err := drive(workers, v.want, length/warmUp); err != nil {
		return sample{}, fmt.Errorf("%s: %w", v.name, err)
	}
	begin := time.Now()
	times, err := drive(workers, v.want, length)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", v.name, err)
	}
	elapsed := time.Since(begin)
	return summarise(times, elapsed), pause(ctx, v.rest)
}

// drive has each worker do requests until the time is over, one at least, and returns how
// long each request took.
func drive(workers []worker, want []byte, length time.Duration) ([]time.Duration, error) {
	var wg sync.WaitGroup
	times := make([][]time.Duration, len(workers))
	errs := make([]error, len(workers))
	end := time.Now().Add(length)
	for i, w := range workers {
		wg.Go(func() {
			times[i] = make([]time.Duration, 0, 1<<14)
			for now := time.Now(); len(times[i]) == 0 || now.Before(end); {
				answer, err := w.do()
				if err == nil && !bytes.Contains(answer, want) {
					err = fmt.Errorf("the answer is %.300q", answer)
				}
				if err != nil {
					errs[i] = err
					return
				}
				done := time.Now()
				times[i] = append(times[i], done.Sub(now))
				now = done
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

// pause waits, or fails if the benchmark is interrupted.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
