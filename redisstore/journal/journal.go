// Package journal makes entries durable, in order, and gives them back at the next start. An entry is bytes
// about some keys; the package knows nothing of their meaning.
//
// Add returns at once, and Wait waits for the keys that an answer is about. A single goroutine writes the
// entries that have come meanwhile as one record, syncs it, and wakes all who wait for it: so one sync serves
// many. A write that fails is repeated until it succeeds; until then Err says why no new work should begin.
//
// The files grow until most of their content is outdated (Due). Then the user of the package writes what
// still counts to a new file, while other work goes on (Begin, Switch, End).
package journal

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"taskgate/internal/work"
)

// Options tune a Journal. The zero value is a good default.
type Options struct {
	// Logger hears of writes that fail; slog.Default() if nil.
	Logger *slog.Logger
	// Floor is how many bytes may be outdated before a rewrite is due, however few bytes still count; 32 MiB
	// if zero.
	Floor int64
	// RetryAfter is the pause before a failed write is repeated; 1s if zero.
	RetryAfter time.Duration
	// SlowAfter is how long a write may take before no new work should begin; 2s if zero.
	SlowAfter time.Duration
	// Folder replaces the folder of the file system, for tests.
	Folder Folder
	// BeforeWrite is called before each write, for tests: its error becomes that of the write.
	BeforeWrite func() error
}

// Journal is a folder with one journal. It is safe for concurrent use.
type Journal struct {
	path string
	dir  Folder
	opts Options
	log  *slog.Logger

	segments []*segment // those that count, in order; the writer owns them after the start
	due      chan struct{}

	mu      sync.Mutex
	queue   []*batch      // waiting, in order
	writing *batch        // nil for none
	since   time.Time     // when it was begun
	err     error         // why the latest write failed; nil if it succeeded
	failed  chan struct{} // closed while err is set
	next    *segment      // made by Begin
	total   int64         // bytes in all files
	base    int64         // bytes that the last rewrite left

	wake   chan struct{}
	stop   context.CancelFunc
	writer sync.WaitGroup
}

// batch is the content of one record.
type batch struct {
	payload []byte
	keys    map[string]struct{}
	after   []func()
	to      *segment // where it begins; nil for the file of the batch before
	mark    bool     // it ends a rewrite
	done    chan struct{}
}

// Replay takes an entry at the start. Its bytes are only valid during the call. Its place is so until the next rewrite,
// for those who want it later.
type Replay func(entry []byte, at Place) error

// Open opens the journal in a folder, which it makes if need be, and calls replay for each entry in order.
func Open(path string, o Options, replay Replay) (*Journal, error) {
	dir := o.Folder
	if dir == nil {
		d, err := openDisk(path, cmp.Or(o.Logger, slog.Default()))
		if err != nil {
			return nil, err
		}
		dir = d
	}
	o.Floor = cmp.Or(o.Floor, 32<<20)
	o.RetryAfter = cmp.Or(o.RetryAfter, time.Second)
	o.SlowAfter = cmp.Or(o.SlowAfter, 2*time.Second)
	j := &Journal{
		path: path, dir: dir, opts: o, log: cmp.Or(o.Logger, slog.Default()),
		due: make(chan struct{}, 1), failed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	if err := j.load(replay); err != nil {
		j.closeFiles()
		return nil, errors.Join(err, dir.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	j.stop = stop
	j.writer.Go(func() { j.run(ctx) })
	return j, nil
}

// Encode appends an entry to those of one Add.
func Encode(to, entry []byte) []byte {
	return append(binary.AppendUvarint(to, uint64(len(entry))), entry...)
}

// Add takes encoded entries about keys. They become durable together, and after all earlier entries; then
// after is called.
func (j *Journal) Add(keys []string, entries []byte, after ...func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.last()
	b.payload = append(b.payload, entries...)
	for _, k := range keys {
		b.keys[k] = struct{}{}
	}
	b.after = append(b.after, after...)
}

// last returns the batch that takes new entries, and wakes the writer. j.mu is held.
func (j *Journal) last() *batch {
	if len(j.queue) == 0 || j.queue[len(j.queue)-1].mark {
		j.push(nil)
	}
	work.Signal(j.wake)
	return j.queue[len(j.queue)-1]
}

// push begins a batch. j.mu is held.
func (j *Journal) push(to *segment) {
	j.queue = append(j.queue, &batch{to: to, keys: map[string]struct{}{}, done: make(chan struct{})})
}

// Wait returns once all present entries about the keys are durable, or with an error if a write fails.
func (j *Journal) Wait(ctx context.Context, keys []string) error {
	return j.wait(ctx, func(b *batch) bool {
		return slices.ContainsFunc(keys, func(k string) bool { _, is := b.keys[k]; return is })
	})
}

// Sync returns once all present entries are durable, or with an error if a write fails.
func (j *Journal) Sync(ctx context.Context) error {
	return j.wait(ctx, func(*batch) bool { return true })
}

// wait waits for the present batches of a kind. Later batches are left out, because under load there is
// always another one.
func (j *Journal) wait(ctx context.Context, of func(*batch) bool) error {
	latest := j.latest(of)
	for latest != nil {
		j.mu.Lock()
		err, failed := j.err, j.failed
		j.mu.Unlock()
		if work.IsClosed(latest.done) {
			return nil
		}
		if err != nil {
			return err
		}
		// The writer wakes it, by success or failure.
		select {
		case <-latest.done:
		case <-failed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// latest is the last batch of a kind; nil if all are durable.
func (j *Journal) latest(of func(*batch) bool) *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range slices.Backward(j.queue) {
		if of(b) {
			return b
		}
	}
	if j.writing != nil && of(j.writing) {
		return j.writing
	}
	return nil
}

// errSlow says that the disk takes long.
var errSlow = errors.New("the disk is slow")

// errClosed is the error of entries that come after Close.
var errClosed = errors.New("the journal is closed")

// Saved reports whether all entries are durable.
func (j *Journal) Saved() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.writing == nil && len(j.queue) == 0
}

// Err says why no new work should begin: the latest write failed, or it takes long. It is nil if all is well.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil && j.writing != nil {
		if took := time.Since(j.since); took > j.opts.SlowAfter {
			return fmt.Errorf("%s: %w: a write takes %s", j.path, errSlow, took.Round(time.Second))
		}
	}
	return j.err
}

// AwaitRemoval waits until writes have failed for so long since the file or its folder is missing, and returns the last
// error: both were removed, and memory alone has what was kept. It returns nil if ctx ends before.
func (j *Journal) AwaitRemoval(ctx context.Context, after time.Duration) error {
	var missing time.Time
	for work.Pause(ctx, after/10) == nil { // nothing wakes it: a write that fails is repeated meanwhile
		err := j.Err()
		switch {
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errReplaced):
			missing = time.Time{}
		case missing.IsZero():
			missing = time.Now()
		case time.Since(missing) >= after:
			return fmt.Errorf("the store was removed while it was in use: %w", err)
		}
	}
	return nil
}

// Due receives when a rewrite would free much of the files' space.
func (j *Journal) Due() <-chan struct{} { return j.due }

// Begin makes the file for a rewrite.
func (j *Journal) Begin() error {
	j.mu.Lock()
	number := j.segments[len(j.segments)-1].number + 1
	for _, b := range j.queue {
		if b.to != nil {
			number = b.to.number + 1
		}
	}
	j.mu.Unlock()
	s, err := j.create(number)
	if err != nil {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next = s
	return nil
}

// Switch sends all later entries to the file that Begin made.
func (j *Journal) Switch() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.push(j.next)
	j.next = nil
	work.Signal(j.wake)
}

// End says that everything in older files that still counts was added since Switch. Once that is durable, the
// older files are removed.
func (j *Journal) End(ctx context.Context) error {
	j.mu.Lock()
	if b := j.last(); len(b.payload) > 0 || len(b.after) > 0 {
		j.push(nil)
	}
	j.queue[len(j.queue)-1].mark = true
	j.mu.Unlock()
	return j.Sync(ctx)
}

// Close makes the added entries durable, if it can, and gives the folder back.
func (j *Journal) Close() error {
	j.stop()
	j.writer.Wait()
	err := j.Err()
	j.fail(errClosed)
	j.closeFiles()
	return errors.Join(err, j.dir.Close())
}

// closeFiles closes the files that are open.
func (j *Journal) closeFiles() {
	for _, s := range append(j.segments, j.next) {
		if s != nil {
			_ = s.file.Close() // all entries that were acknowledged are synced
		}
	}
}
