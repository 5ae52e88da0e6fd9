package shim

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/work"
)

// inbox is how a run learns what others did to its record: it reads the record when that
// may have changed, and again for as long as that fails. The run owns it. Its lock is held
// for a moment only, other than that of the run, which may be writing to a slow client.
type inbox struct {
	run *run

	mu      sync.Mutex
	stale   bool  // the record may have changed since it was last read
	active  bool  // a goroutine reads it
	version int64 // of the newest change by others that was heard of; 0 for none
	seen    int64 // the last such version that was read
	epoch   int64 // recovery.epoch when that read began, or the creation of the record

	// turn counts the states that came in, from a read or with the reply to a write. A
	// read that was overtaken by another state may be older than that, and is repeated. It
	// is guarded by run.mu.
	turn int64
}

// reviewVersion has the record read. version is that of the change by others that was heard of.
func (in *inbox) reviewVersion(version int64) {
	in.mu.Lock()
	in.version = version
	in.mu.Unlock()
	in.rereadRecord()
}

// rereadRecord has the record read.
func (in *inbox) rereadRecord() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stale = true
	if !in.active {
		in.active = in.run.core.life.work.Go(in.readUntilSeen)
	}
}

// upToDate reports whether the last change by others, which had this version in an epoch,
// was read.
func (in *inbox) upToDate(version, epoch int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.seen == version && in.epoch == epoch
}

// takeStale takes the version up to which the record is to be read, or reports that there is
// nothing to read.
func (in *inbox) takeStale(over bool) (version int64, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.active = in.stale && !over
	in.stale = false
	return in.version, in.active
}

// noteRead notes what was read.
func (in *inbox) noteRead(version, epoch int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.seen, in.epoch = version, epoch
}

// readUntilSeen reads the record until nothing is known to have changed since.
func (in *inbox) readUntilSeen() {
	r := in.run
	for d := retryFirst; ; {
		version, ok := in.takeStale(r.record.isClosed())
		if !ok {
			return
		}
		epoch := r.core.epoch.Load()
		r.mu.Lock()
		turn, lease := in.turn, r.record.lease
		r.mu.Unlock()

		t, err := r.core.readRecord(r.core.life.writes, r.record.id, Summary)
		switch {
		case err == nil:
			d = retryFirst
			if in.receiveState(t, turn, lease) {
				in.noteRead(version, epoch)
			} else {
				in.rereadRecord()
			}
		case errors.Is(err, ErrNotFound):
			// Where it cannot be written again, the next write or audit tries again.
			if _, err := withPatience(r.core.life.writes, r.core, r.record.restoreTask); err == nil {
				in.rereadRecord()
			}
		default:
			in.rereadRecord()
			work.PauseUntil(r.record.over, spreadPause(d))
			d = min(2*d, retryMost)
		}
	}
}

// receiveState takes the state that a read has found which began at this turn, under this lease. It
// reports false if another state has overtaken it.
func (in *inbox) receiveState(t Task, turn int64, lease Lease) bool {
	r := in.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if in.turn != turn || r.record.lease != lease {
		return false
	}
	in.turn++
	switch {
	case t.Status.Final():
		r.token.cancelRun(t)
		return true
	case t.Lease != lease:
		r.cancel(ErrDetached)
		return true
	case t.Visible && r.record.hidden && r.creation.pending == nil:
		r.noteShown(t)
	case !t.Visible && !r.record.hidden: // a failover has lost that it became a task
		r.core.life.work.Go(r.record.revealTask)
	}
	r.box.takeState(t)
	return true
}

// tokenWait is how long a run waits for the message that has the token of an answer or a cancellation.
const tokenWait = time.Second

// tokenInbox is how a run gets the token of a request that another replica has had: by a message, since
// the store keeps none. The run owns it.
type tokenInbox struct {
	run  *run
	at   atomic.Int64  // the version of the newest change whose token is here, or is no longer waited for
	came chan struct{} // has a signal when one has come
}

// takeToken has what others bring to the call go out with their token, that of the change of this version.
func (in *tokenInbox) takeToken(token string, version int64) {
	if r := in.run; token != "" && r.srv.BringToken != nil {
		r.srv.BringToken(r.base, string(r.record.id), token)
	}
	if token != "" && in.at.Load() < version {
		in.at.Store(version)
		work.Signal(in.came)
	}
}

// awaitToken waits for the token of a change that a state of the record tells of.
func (in *tokenInbox) awaitToken(t Task) {
	late := time.NewTimer(tokenWait)
	defer late.Stop()
	for in.at.Load() < t.TokenAt {
		// The message wakes it. If that is lost, the call goes on without.
		select {
		case <-in.came:
		case <-late.C:
			in.at.Store(t.TokenAt)
		case <-in.run.ctx.Done():
			return
		}
	}
}

// cancelRun ends the call of a record that another replica has ended, once the token is here that the server is
// to be told with.
func (in *tokenInbox) cancelRun(t Task) {
	r := in.run
	if in.at.Load() >= t.TokenAt || !r.core.life.work.Go(func() {
		in.awaitToken(t)
		r.cancel(errTaskCancelled)
	}) {
		r.cancel(errTaskCancelled)
	}
}
