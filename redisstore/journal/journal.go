// Package journal makes durable what it is given, in order, and gives it back at the next
// start. It knows entries of bytes, and the keys that they are about, and not what they mean.
//
// Whoever adds entries goes on at once, and waits for the keys that an answer is about (Wait).
// One goroutine writes whatever has come meanwhile as one record, syncs it, and lets all go on
// who wait for it: so one sync serves many. If a write fails it is repeated until it succeeds,
// and Err says why nothing new should be begun.
//
// The files grow until what they hold is mostly outdated (Due). Then their user writes what is
// left of it to a next one, between what goes on (Begin, Switch, End).
package journal

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	// Floor is how many bytes may be outdated before a rewrite is due, however little is
	// left of them; 32 MiB if zero.
	Floor int64
	// RetryAfter is the pause before a failed write is repeated; 1s if zero.
	RetryAfter time.Duration
	// SlowAfter is how long a write may take before nothing new should be begun; 2s if zero.
	SlowAfter time.Duration
	// BeforeWrite is called before each write, for tests: an error is that of the write.
	BeforeWrite func() error
}

// Journal is a folder with one journal. It is safe for concurrent use.
type Journal struct {
	path string
	dir  folder
	disk *disk // dir, but in tests
	opts Options
	log  *slog.Logger

	segments []*segment // those that count, in order; the writer's own after the start
	due      chan struct{}

	mu      sync.Mutex
	queue   []*batch      // not begun, in order
	writing *batch        // nil for none
	since   time.Time     // when it was begun
	err     error         // why the latest write failed; nil if it did not
	failed  chan struct{} // closed while err is there
	next    *segment      // made by Begin
	total   int64         // bytes in all files
	base    int64         // bytes of what the last rewrite left

	wake   chan struct{}
	stop   context.CancelFunc
	writer sync.WaitGroup
}

// batch is what is written as one record.
type batch struct {
	payload []byte
	keys    map[string]struct{}
	after   []func()
	to      *segment // where it begins; nil for behind the one before
	mark    bool     // it ends a rewrite
	done    chan struct{}
}

// Open opens the journal in a folder, which it makes if need be, calls replay for each entry
// in order, and then takes more. The bytes of an entry are only good for the call.
func Open(path string, o Options, replay func(entry []byte) error) (*Journal, error) {
	d, err := openDisk(path)
	if err != nil {
		return nil, err
	}
	j, err := open(path, d, o, replay)
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	j.disk = d
	return j, nil
}

// open is Open over any folder.
func open(path string, dir folder, o Options, replay func(entry []byte) error) (*Journal, error) {
	o.Floor = cmp.Or(o.Floor, 32<<20)
	o.RetryAfter = cmp.Or(o.RetryAfter, time.Second)
	o.SlowAfter = cmp.Or(o.SlowAfter, 2*time.Second)
	j := &Journal{
		path: path, dir: dir, opts: o, log: o.Logger,
		due: make(chan struct{}, 1), failed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	if j.log == nil {
		j.log = slog.Default()
	}
	if err := j.load(replay); err != nil {
		j.closeFiles()
		return nil, err
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

// Add takes encoded entries about keys, which become durable together, and after what was
// added before. Once they are, after is called.
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

// last is the batch that takes what comes, and the writer is told of it. j.mu is held.
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

// Wait returns once all entries that there are about the keys are durable, with an error once that is in doubt.
func (j *Journal) Wait(ctx context.Context, keys []string) error {
	return j.wait(ctx, func(b *batch) bool {
		return slices.ContainsFunc(keys, func(k string) bool { _, is := b.keys[k]; return is })
	})
}

// Sync returns once all entries that there are are durable, with an error once that is in doubt.
func (j *Journal) Sync(ctx context.Context) error {
	return j.wait(ctx, func(*batch) bool { return true })
}

// wait waits for the batches of a kind that there are. It does not wait for those that come meanwhile: under
// load there is always one.
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

// latest is the last batch of a kind, nil if all are durable.
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

// errClosed is what is said of entries that come after Close.
var errClosed = errors.New("the journal is closed")

// Saved reports whether all entries are durable.
func (j *Journal) Saved() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.writing == nil && len(j.queue) == 0
}

// Err is why nothing new should be begun: the latest write failed, or it takes long. It is nil
// if all is well.
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

// Due receives when a rewrite would give much of the files' place back.
func (j *Journal) Due() <-chan struct{} { return j.due }

// Begin makes the file that a rewrite goes to.
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

// Switch has everything that is added from now on go to the file that Begin made.
func (j *Journal) Switch() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.push(j.next)
	j.next = nil
	work.Signal(j.wake)
}

// End says that all that is in older files and still counts was added since Switch. Once that
// is durable, the older files go.
func (j *Journal) End(ctx context.Context) error {
	j.mu.Lock()
	if b := j.last(); len(b.payload) > 0 || len(b.after) > 0 {
		j.push(nil)
	}
	j.queue[len(j.queue)-1].mark = true
	j.mu.Unlock()
	return j.Sync(ctx)
}

// Close makes durable what was added, if it can, and gives the folder back.
func (j *Journal) Close() error {
	j.stop()
	j.writer.Wait()
	err := j.Err()
	j.fail(errClosed)
	j.closeFiles()
	if j.disk != nil {
		err = errors.Join(err, j.disk.close())
	}
	return err
}

// closeFiles closes what is open.
func (j *Journal) closeFiles() {
	for _, s := range append(j.segments, j.next) {
		if s != nil {
			_ = s.file.Close() // nothing is unsynced that anybody was told of
		}
	}
}
