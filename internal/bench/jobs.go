package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"taskgate/internal/work"
)

// following is what was found with so many running jobs.
type following struct {
	era    string
	jobs   int
	length time.Duration // of the measurement: one pause between two questions
	used   usage
	polls  int // in that time
}

// measureJobs has the gateway follow jobs at servers of both eras, and measures what one pause between two questions about
// each costs. Each level has a fresh gateway; the one with a single job shows what the gateway costs by itself.
func measureJobs(ctx context.Context, s settings) (string, error) {
	if !s.wants("jobs") {
		return "", nil
	}
	levels, err := measureLevels(s.jobs, "jobs", func(era string, n int) (following, error) { return followAt(ctx, s, era, n) })
	if err != nil {
		return "", err
	}
	return jobsTable(levels), nil
}

// followAt measures one level.
func followAt(ctx context.Context, s settings, era string, n int) (following, error) {
	l := following{era: era, jobs: n, length: s.every}
	st, err := newStage(ctx, s, era)
	if err != nil {
		return l, err
	}
	defer st.close()
	start := call(st.gateway, toolStart, true, handled)
	workers, hangUp, err := start.dialWorkers(min(parkedConns, n))
	defer hangUp()
	if err == nil {
		err = start.doTimes(workers, n)
	}
	if err == nil { // each was asked for once
		err = st.waitCount(ctx, "?polls", n, 2*s.every+answerTimeout)
	}
	if err == nil {
		err = st.watchPolls(ctx, &l)
	}
	return l, st.explain(err)
}

// watchPolls looks at what the gateway and Redis use in one pause.
func (st *stage) watchPolls(ctx context.Context, l *following) error {
	polled, err := st.held(ctx, "?polls")
	if err != nil {
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
	if err != nil {
		return err
	}
	l.used = after.since(before)
	now, err := st.held(ctx, "?polls")
	l.polls = now - polled
	return err
}

// jobsTable is a row for each level.
func jobsTable(levels []following) string {
	var b strings.Builder
	b.WriteString("\n### Jobs of the server\n\n| server | jobs | resident | CPU | questions/s | commands/s of Redis |\n|---|---:|---:|---:|---:|---:|\n")
	for _, l := range levels {
		seconds := l.length.Seconds()
		fmt.Fprintf(&b, "| %s | %d | %d MB | %.1f %% | %.1f | %.1f |\n", l.era, l.jobs, l.used.resident>>20,
			100*l.used.cpu.Seconds()/seconds, float64(l.polls)/seconds, float64(l.used.commands)/seconds)
	}
	return b.String()
}
