package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"taskgate/internal/work"
)

// run writes one batch after the other until ctx ends, and then the last one.
func (j *Journal) run(ctx context.Context) {
	for {
		b := j.take()
		if b == nil {
			// Add, Switch and End wake it.
			select {
			case <-j.wake:
				continue
			case <-ctx.Done():
			}
			if b = j.take(); b == nil {
				return
			}
		}
		for {
			err := j.write(b)
			if err == nil {
				break
			}
			j.fail(err)
			if work.Pause(ctx, j.opts.RetryAfter) != nil {
				return // Close returns the error
			}
		}
		j.saved(b)
	}
}

// take takes the next batch; nil if there is none.
func (j *Journal) take() *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		return nil
	}
	b := j.queue[0]
	j.queue = j.queue[1:]
	j.writing, j.since = b, time.Now()
	return b
}

// write writes a batch. A failed attempt may have left parts of it.
func (j *Journal) write(b *batch) error {
	if b.to != nil && j.current() != b.to {
		j.mu.Lock()
		j.segments = append(j.segments, b.to)
		j.mu.Unlock()
	}
	s := j.current()
	if len(b.payload) > math.MaxUint32 {
		return errors.New("more than 4 GiB at once")
	}
	if len(b.payload) > 0 || b.mark {
		if f := j.opts.BeforeWrite; f != nil {
			if err := f(); err != nil {
				return err
			}
		}
		if err := s.append(b.payload); err != nil {
			return err
		}
	}
	if b.mark {
		return j.removeOld()
	}
	return nil
}

// current is the file that is being written.
func (j *Journal) current() *segment {
	return j.segments[len(j.segments)-1]
}

// removeOld removes the files before the current one.
func (j *Journal) removeOld() error {
	for len(j.segments) > 1 {
		s := j.segments[0]
		_ = s.file.Close() // the file is removed
		if err := j.dir.Remove(s.name()); err != nil {
			return err
		}
		j.mu.Lock()
		j.segments = j.segments[1:]
		j.mu.Unlock()
	}
	j.mu.Lock()
	j.base = j.current().size
	j.mu.Unlock()
	return j.dir.Sync()
}

// fail notes that a write has failed, and wakes all who wait.
func (j *Journal) fail(err error) {
	err = fmt.Errorf("%s: %w", j.path, err)
	j.mu.Lock()
	before := j.err
	j.err = err
	if before == nil {
		close(j.failed)
	}
	j.mu.Unlock()
	if before == nil && !errors.Is(err, errClosed) {
		j.log.Error("the store cannot be written to; no new tasks until it can", "err", err)
	}
}

// saved wakes all who wait for a batch.
func (j *Journal) saved(b *batch) {
	for _, f := range b.after {
		f()
	}
	j.mu.Lock()
	j.writing = nil
	if j.err != nil {
		j.err, j.failed = nil, make(chan struct{})
		j.log.Info("the store can be written to again")
	}
	j.total = 0
	for _, s := range j.segments {
		j.total += s.size
	}
	due := j.total > 2*j.base+j.opts.Floor
	j.mu.Unlock()
	if due {
		work.Signal(j.due)
	} else { // a rewrite that was due has ended
		select {
		case <-j.due:
		default:
		}
	}
	close(b.done)
}
