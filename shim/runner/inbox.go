package runner

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// inbox learns what others did to the run's record: it reads the record when that may have changed, and
// repeats a read that fails. The run owns it. It has its own lock, held for a moment only, because the
// run's lock may be held while it writes to a slow client.
type inbox struct {
	run *Run

	mu      sync.Mutex
	stale   bool  // the record may have changed since it was last read
	active  bool  // a goroutine reads it
	version int64 // of the newest change by others that an event told of; 0 for none
	seen    int64 // the version that the last read has covered
	epoch   int64 // core.epoch when that read began, or at the creation of the record
}

// ReviewVersion has the record read after news of a change by others with this version.
func (in *inbox) ReviewVersion(version int64) {
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
		in.active = in.run.core.Life.Work.Go(in.readUntilSeen)
	}
}

// UpToDate reports whether a read has covered the change by others with this version, in this epoch.
func (in *inbox) UpToDate(version, epoch int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.seen == version && in.epoch == epoch
}

// takeStale takes the version up to which the record is to be read; ok is false if it is up to date.
func (in *inbox) takeStale(over bool) (version int64, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.active = in.stale && !over
	in.stale = false
	return in.version, in.active
}

func (in *inbox) noteRead(version, epoch int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.seen, in.epoch = version, epoch
}

// readUntilSeen reads the record until a read has seen all known changes.
func (in *inbox) readUntilSeen() {
	r := in.run
	for d := node.RetryFirst; ; {
		version, ok := in.takeStale(work.IsClosed(r.record.over) || r.core.Life.Writes.Err() != nil)
		if !ok {
			return
		}
		if in.readOnce(version) == nil {
			d = node.RetryFirst
			continue
		}
		in.rereadRecord()
		work.PauseUntil(r.record.over, node.SpreadPause(d))
		d = min(2*d, node.RetryMost)
	}
}

// readOnce reads the record, and takes its state before anything else is read or written of it. It writes a record
// that the store has forgotten again; if that fails, the next write or audit tries again.
func (in *inbox) readOnce(version int64) error {
	r := in.run
	if err := r.turn.take(r.core.Life.Writes); err != nil {
		return err
	}
	defer r.turn.give()
	epoch, lease := r.core.Epoch.Load(), r.record.currentLease()
	t, err := r.core.ReadRecord(r.core.Life.Writes, r.record.ID, shim.Summary)
	switch {
	case err == nil && in.receiveState(t, lease):
		in.noteRead(version, epoch)
	case err == nil:
		in.rereadRecord()
	case errors.Is(err, shim.ErrNotFound):
		if _, lost := node.WithPatience(r.core.Life.Writes, r.core, r.record.restoreTask); lost == nil {
			in.rereadRecord()
		}
	default:
		return err
	}
	return nil
}

// receiveState takes the state from a read under this lease. It reports false if the run has had another one since.
func (in *inbox) receiveState(t shim.Task, lease shim.Lease) bool {
	r := in.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record.Lease != lease {
		return false
	}
	switch {
	case t.Status.Final():
		r.Token.cancelRun(t)
		return true
	case t.Lease != lease:
		r.Cancel(shim.ErrDetached)
		return true
	case !t.Visible && r.record.Visible: // a failover has lost that it became a task
		r.core.Life.Work.Go(r.record.revealTask)
	}
	r.box.gatherAnswers(t)
	r.record.takeState(t)
	return true
}

// tokenWait is how long a run waits for the message with the token of an answer or a cancellation.
const tokenWait = time.Second

// tokenInbox gets the token of a request that another replica has received: by a message, as tokens are
// kept out of the store. The run owns it.
type tokenInbox struct {
	run  *Run
	at   atomic.Int64  // version of the newest change whose token is here, or is given up
	came chan struct{} // signals that one has come
}

// TakeToken gives the run's context the token of the change of this version, for its messages to the
// server.
func (in *tokenInbox) TakeToken(token string, version int64) {
	if r := in.run; token != "" && r.Srv.BringToken != nil {
		r.Srv.BringToken(r.base, string(r.record.ID), token)
	}
	if token != "" && in.at.Load() < version {
		in.at.Store(version)
		work.Signal(in.came)
	}
}

// awaitToken waits for the token of the newest change in a state of the record.
func (in *tokenInbox) awaitToken(t shim.Task) {
	late := time.NewTimer(tokenWait)
	defer late.Stop()
	for in.at.Load() < t.TokenAt {
		// The message wakes it. If that is lost, the call goes on without the token.
		select {
		case <-in.came:
		case <-late.C:
			in.at.Store(t.TokenAt)
		case <-in.run.Ctx.Done():
			return
		}
	}
}

// cancelRun ends the call of a record that another replica has ended, once the token for the server's
// cancellation is here.
func (in *tokenInbox) cancelRun(t shim.Task) {
	r := in.run
	if in.at.Load() >= t.TokenAt || !r.core.Life.Work.Go(func() {
		in.awaitToken(t)
		r.Cancel(node.ErrTaskCancelled)
	}) {
		r.Cancel(node.ErrTaskCancelled)
	}
}
