package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"taskgate/internal/work"
)

// parkedConns is how many connections make the tasks, and the other calls beside them.
const parkedConns = 16

// settled is how long after a load the gateway has nothing left to do of it.
const settled = 3 * time.Second

// level is what was found with so many parked tasks.
type level struct {
	era        string
	parked     int
	idle       usage
	length     time.Duration // of the idle time
	plain, get sample
	proxy      sample
}

// measureParked parks tasks at servers of both eras, and measures what the gateway uses while
// nothing happens, and calls beside them. Each level has a fresh gateway.
func measureParked(ctx context.Context, s settings) (string, error) {
	if !s.wants("parked") {
		return "", nil
	}
	if err := raiseFiles(s.parked); err != nil {
		return "", err
	}
	levels, err := measureLevels(s.parked, "parked tasks", func(era string, n int) (level, error) { return parkAt(ctx, s, era, n) })
	if err != nil {
		return "", err
	}
	return parkedTable(levels), nil
}

// measureLevels measures with one of something and with n, at a server of each era.
func measureLevels[T any](n int, what string, measure func(era string, n int) (T, error)) (levels []T, err error) {
	for _, era := range []string{"legacy", "modern"} {
		for _, n := range []int{1, n} {
			at := fmt.Sprintf("%d %s at a %s server", n, what, era)
			fmt.Fprintln(os.Stderr, at)
			l, err := measure(era, n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			levels = append(levels, l)
		}
	}
	return levels, nil
}

// parkAt measures one level.
func parkAt(ctx context.Context, s settings, era string, n int) (level, error) {
	l := level{era: era, parked: n, length: min(max(15*s.length, time.Second), 10*time.Second)}
	st, err := newStage(ctx, s, era)
	if err != nil {
		return l, err
	}
	defer st.close()
	task, err := st.park(n)
	if err == nil {
		err = st.waitHeld(ctx, n)
	}
	if err == nil {
		err = st.watch(ctx, &l)
	}
	if err == nil {
		err = st.measureBeside(s, task, &l)
	}
	return l, st.explain(err)
}

// park makes n tasks that last, and returns the id of one.
func (st *stage) park(n int) (id string, err error) {
	hold := call(st.gateway, toolHold, true, handled)
	workers, hangUp, err := hold.dialWorkers(min(parkedConns, max(n-1, 1)))
	defer hangUp()
	if err != nil {
		return "", err
	}
	answer, err := workers[0].do()
	if err != nil {
		return "", err
	}
	if id, err = taskID(answer); err != nil || n == 1 {
		return id, err
	}
	return id, hold.doTimes(workers, n-1)
}

// watch looks at what the gateway and Redis use while nothing happens.
func (st *stage) watch(ctx context.Context, l *level) error {
	if err := work.Pause(ctx, settled); err != nil {
		return err
	}
	before, err := st.usage()
	if err != nil {
		return err
	}
	if err := work.Pause(ctx, l.length); err != nil {
		return err
	}
	after, err := st.usage()
	l.idle = after.since(before)
	return err
}

// measureBeside measures calls and reads beside the parked tasks.
func (st *stage) measureBeside(s settings, task string, l *level) error {
	loads := []load{
		call(st.proxy, "plain", false, answered), call(st.gateway, "plain", false, answered),
		{addr: st.gateway, request: getTask(st.gateway, task), want: `"status":"working"`},
	}
	samples := make([][]sample, len(loads))
	for range s.rounds {
		for i, one := range loads {
			got, err := one.measure(parkedConns, s.length)
			if err != nil {
				return err
			}
			samples[i] = append(samples[i], got)
		}
	}
	l.proxy, l.plain, l.get = median(samples[0]), median(samples[1]), median(samples[2])
	return nil
}

// parkedTable is a row for each level.
func parkedTable(levels []level) string {
	var b strings.Builder
	b.WriteString("\n### Parked tasks\n\n| server | parked | resident | CPU, idle | commands/s, idle | plain calls/s | of the bare proxy | tasks/get/s | of the bare proxy |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, l := range levels {
		fmt.Fprintf(&b, "| %s | %d | %d MB | %.1f %% | %.1f | %.0f | %.2f | %.0f | %.2f |\n", l.era, l.parked, l.idle.resident>>20,
			100*l.idle.cpu.Seconds()/l.length.Seconds(), float64(l.idle.commands)/l.length.Seconds(),
			l.plain.rate, l.plain.rate/l.proxy.rate, l.get.rate, l.get.rate/l.proxy.rate)
	}
	return b.String()
}
