package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/taskclient"
)

// What a call ends with of which nothing is known any more, and one whose gateway was
// stopped while nobody else could go on with it. forgottenMessage is of one whose
// record the store lost before the call was sent, which only one that loses may do.
const (
	forgottenMessage = "the call could not be recorded and was not sent"
	lostMessage      = "the replica that ran this call was lost; the upstream may have finished the work"
	stoppedMessage   = "the gateway was shut down while this call ran; the upstream may have finished the work"
)

// judge holds what clients see against what is promised.
type judge struct {
	// forgetful is a store that may go back in time: an end may be unseen for a
	// while, and be written again, but it has to be the same end.
	forgetful bool
	// lossy is one whose last moments may be lost for good: cancellations too.
	lossy bool
	gaps  []gap
	// rewinds is a store that goes back to what it was some time ago, or to nothing, under gateways
	// of which none dies. What it loses is unknown, or as it was, until it is written
	// again by whoever has it: then it is as it was before. No call changes hands, so
	// none is lost with its gateway. Of what was over for long nobody has anything to write.
	rewinds bool
	emptied []time.Time // when it was back with nothing
	// undisturbed says that nothing happens of which a client may notice anything.
	undisturbed bool

	mu         sync.Mutex
	tasks      map[string]*record
	ends       []*record // those that have ended
	violations []string
	reads      int
	calmed     time.Time // since when nothing goes wrong any more
	outcomes   counts
	shows      map[string]*shown // by task, also of those that nobody has the handle of
}

// record is what was seen of one task.
type record struct {
	call      *call
	dialect   dialect // of the client that made it
	id        string
	created   time.Time
	at        time.Time // when the handle came
	cancelled bool      // somebody asked for its end
	acked     bool      // and was told that this was heard
	asks      bool      // it waited for input when it was last read
	open      bool      // it had not ended then
	end       *state    // the first final state that was seen
	turned    string    // another one that the judge has been told of
	forgotten int       // how often a final state was followed by an open one
	lost      bool      // a gateway has said that the store has lost it
	unknown   atomic.Bool
}

// gone reports whether a gateway has said that the task is unknown.
func (r *record) gone() bool { return r.unknown.Load() }

func newJudge() *judge {
	return &judge{tasks: map[string]*record{}, outcomes: counts{}, shows: map[string]*shown{}}
}

// blame records a violation.
func (j *judge) blame(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blamed(format, args...)
}

func (j *judge) blamed(format string, args ...any) {
	j.violations = append(j.violations, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// disturbed records something that a client noticed, where it should notice nothing. That
// it did not wait any longer is no such thing.
func (j *judge) disturbed(ctx context.Context, format string, args ...any) {
	if j.undisturbed && ctx.Err() == nil {
		j.blame(format, args...)
	}
}

// report has the test fail with what was wrong, of which the first is enough.
func (j *judge) report(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, v := range j.violations {
		if i == 30 {
			t.Errorf("and %d more", len(j.violations)-i)
			break
		}
		t.Error(v)
	}
}

// count adds to the summary.
func (j *judge) count(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outcomes[what]++
}

// acknowledged registers the task that a client was given.
func (j *judge) acknowledged(c *call, d dialect, s state) *record {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.tasks[s.id] != nil {
		j.blamed("%s: the task %s was given out before", c.id, s.id)
	}
	r := &record{call: c, dialect: d, id: s.id, created: s.created, at: time.Now()}
	j.tasks[s.id] = r
	j.seen(r, s)
	return r
}

// observe takes one reading of a task.
func (j *judge) observe(r *record, s state) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.reads++
	j.seen(r, s)
	if r.lost {
		j.blamed("%s: task %s was lost, and is %s now", r.call.id, r.id, describe(s))
	}
	r.asks, r.open = s.status == waitsForInput, !s.ended()
}

func (j *judge) seen(r *record, s state) {
	if !s.created.Equal(r.created) && !j.turns() {
		j.blamed("%s (%s, %s): task %s was created at %s, now at %s", r.call.id, r.call.tool.name, r.dialect.name(), r.id, r.created, s.created)
		r.created = s.created
	}
	switch {
	case r.end == nil && s.ended():
		r.end = &s
		j.ends = append(j.ends, r)
		j.checkEnd(r, s)
	case r.end == nil:
	case !s.ended() && j.turns() && j.writesAgain():
		r.forgotten++
	case r.end.status == taskclient.Cancelled && s.ended() && j.lossy && j.inGap(r.end.updated):
		// The failover has lost the cancellation, and the call ended before it was written again.
		r.end = &s
		j.checkEnd(r, s)
	case !same(*r.end, s, !j.turns()) && r.turned != describe(s):
		r.turned = describe(s)
		j.blamed("%s: task %s had ended as %s, and is now %s", r.call.id, r.id, describe(*r.end), describe(s))
	}
	if r.acked && !s.ended() && !j.lossy && !(j.rewinds && j.writesAgain()) {
		j.blamed("%s: task %s is %s after its cancellation was acknowledged", r.call.id, r.id, s.status)
	}
}

// same compares two final states.
func same(a, b state, times bool) bool {
	return a.status == b.status && a.message == b.message && string(a.result) == string(b.result) &&
		fmt.Sprint(a.err) == fmt.Sprint(b.err) && (!times || a.updated.Equal(b.updated) && a.ttl == b.ttl)
}

func describe(s state) string {
	return fmt.Sprintf("%s %q updated %s result %.60q error %v", s.status, s.message, s.updated.Format(time.RFC3339Nano), s.result, s.err)
}

// checkEnd checks that a task may end like this.
func (j *judge) checkEnd(r *record, s state) {
	var err error
	switch s.status {
	case taskclient.Completed:
		err = checkResult(r.call, s.result)
	case taskclient.Cancelled:
		if !r.cancelled {
			err = fmt.Errorf("nobody cancelled it")
		}
	case taskclient.Failed:
		err = checkError(r.call, s.err)
		if (j.lossy || j.rewinds) && s.err != nil && s.err.Message == forgottenMessage {
			err = nil
		}
		if j.rewinds && s.err != nil && (s.err.Message == lostMessage || s.err.Message == stoppedMessage) {
			err = fmt.Errorf("the gateway that ran it lives")
		}
	}
	if err != nil {
		j.blamed("%s (%s): task %s ended as %s: %v", r.call.id, r.call.tool.name, r.id, describe(s), err)
	}
}

// checkResult checks that a result is what the upstream returned for that call. Where
// it was streamed, it begins with what was said before.
func checkResult(c *call, result json.RawMessage) error {
	var got struct {
		Content           []struct{ Text string }
		StructuredContent json.RawMessage
		IsError           bool
	}
	if err := json.Unmarshal(result, &got); err != nil {
		return err
	}
	switch {
	case c.outcome == rpcError:
		return fmt.Errorf("the upstream answered an error, not %.100q", result)
	case len(got.Content) != 1+len(c.questions) || got.Content[0].Text != text(c.id), string(got.StructuredContent) != structured(c.id),
		got.IsError != (c.outcome == toolError):
		return fmt.Errorf("the result is %.300q", result)
	}
	return nil
}

// checkError checks that a call may end with an error: the upstream's own, or one of
// the gateway's that are known.
func checkError(c *call, e *taskclient.Error) error {
	switch {
	case e == nil:
		return fmt.Errorf("failed without an error")
	case e.Code == codeWrong && c.outcome == rpcError && e.Message == c.id+" went wrong":
		return nil
	case e.Code == -32603 && (e.Message == lostMessage || e.Message == stoppedMessage):
		return nil
	}
	return fmt.Errorf("the error is %d %q", e.Code, e.Message)
}

// missing takes the answer that a task is unknown, or that the store does not have it; verdict: for good.
func (j *judge) missing(r *record, addr string, verdict bool, e *taskclient.Error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.lost = r.lost || verdict
	switch {
	case j.forgiven(r):
		r.unknown.Store(true)
		return
	case (j.lossy || j.rewinds) && j.writesAgain() && !verdict:
		r.open = true // its replica may not have noticed yet
		return
	}
	r.unknown.Store(true)
	j.blamed("%s: task %s, acknowledged %s ago, is unknown to %s: %v (its end was %v)", r.call.id, r.id, time.Since(r.at).Round(time.Millisecond), addr, e, outcomeOf(r.end))
}

// forgive says that the store has lost what came between two times.
func (j *judge) forgive(from, to time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gaps = append(j.gaps, gap{from, to})
}

// gap is a time that a store does not remember.
type gap struct{ from, to time.Time }

// empty says that the store is back with nothing.
func (j *judge) empty() {
	j.forgive(time.Time{}, time.Now().Add(time.Second))
	j.mu.Lock()
	defer j.mu.Unlock()
	j.emptied = append(j.emptied, time.Now())
}

// settles is for how long a gateway knows how a task has ended, at least from its handle on.
const settles = 29 * time.Second

// forgiven reports whether a task may have been made in a gap. One whose end was
// seen is not forgiven: its replica has to write that again. Where no gateway dies,
// that holds for each task that has not ended long ago.
func (j *judge) forgiven(r *record) bool {
	if j.rewinds {
		return slices.ContainsFunc(j.emptied, func(at time.Time) bool { return r.at.Add(settles).Before(at) })
	}
	return r.end == nil && j.inGap(r.at)
}

// inGap reports whether the store may not remember a time.
func (j *judge) inGap(at time.Time) bool {
	return slices.ContainsFunc(j.gaps, func(g gap) bool { return at.After(g.from) && at.Before(g.to) })
}

// unread is how long an answer may be in the store before its runner has read it, with the second that forgive adds.
const unread = 2 * time.Second

// forgetsAnswer reports whether the store may have lost an answer, acknowledged then, before its runner had read it.
func (j *judge) forgetsAnswer(at time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.gaps, func(g gap) bool { return at.After(g.from) && at.Before(g.to) && g.to.Sub(at) < unread })
}

// restored is how long it may take until what a store has forgotten is there again:
// a replica notices when it is connected again, and looks once more when the end has
// settled.
const restored = 40 * time.Second

// writesAgain reports whether what a store has forgotten may not have been written again
// yet. j.mu is held.
func (j *judge) writesAgain() bool {
	return j.calmed.IsZero() || time.Since(j.calmed) < restored
}

// turns reports whether the store may go back in time. j.mu is held.
func (j *judge) turns() bool { return j.forgetful || j.rewinds }

// calm says that nothing goes wrong any more.
func (j *judge) calm() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calmed = time.Now()
}

// records are all tasks that were acknowledged.
func (j *judge) records() []*record {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := make([]*record, 0, len(j.tasks))
	for _, r := range j.tasks {
		list = append(list, r)
	}
	return list
}

// anyEnded is one of those of them whose end was seen, if there is one.
func (j *judge) anyEnded(r *rand.Rand) *record {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ends) == 0 {
		return nil
	}
	return pick(r, j.ends)
}

// asks reports whether a task waited for input when it was last read.
func (j *judge) asks(r *record) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return r.asks
}

// settled reports whether a task was at its end when it was last read, or should have been.
func (j *judge) settled(r *record) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !r.open || !j.turns() || !j.writesAgain()
}

// ended returns the end of a task, if one was seen.
func (j *judge) ended(r *record) *state {
	j.mu.Lock()
	defer j.mu.Unlock()
	return r.end
}

// cancelling says that the end of a task is about to be asked for, or that this was
// acknowledged.
func (j *judge) cancelling(r *record, acked bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.cancelled = true
	r.acked = r.acked || acked
}

// executions checks how often a call was executed.
func (j *judge) executions(c *call, n int, answered bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outcomes[fmt.Sprintf("executed %d times (%s)", n, recoverOf(c.tool))]++
	switch {
	case n > c.tool.allowed():
		j.blamed("%s (%s): executed %d times", c.id, c.tool.name, n)
	case n == 0 && answered:
		j.blamed("%s (%s): has a result, and was never executed", c.id, c.tool.name)
	}
}

func recoverOf(t tool) string {
	if t.retry {
		return "recover: retry"
	}
	return "recover: fail"
}

// outcomeOf words the end of a task for the summary.
func outcomeOf(s *state) string {
	switch {
	case s == nil:
		return "no end was seen (lost in a failover, unless reported below)"
	case s.status != taskclient.Failed:
		return s.status
	case s.err != nil && s.err.Code == codeWrong:
		return "failed, as the upstream answered"
	case s.err != nil && s.err.Message == lostMessage:
		return "failed, lost replica"
	case s.err != nil && s.err.Message == stoppedMessage:
		return "failed, stopped replica"
	}
	return "failed, " + s.message
}
