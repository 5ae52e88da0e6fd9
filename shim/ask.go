package shim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// This file is the runner's side of the mailbox: how the questions of a server get
// into the record of its call, and the answers out of it (design.md 0.18). A caller
// that is asked while its call is no task has a record all the same, a hidden one.

// mailbox is what a run knows of the questions it has open. All but wake is guarded
// by run.mu.
type mailbox struct {
	open []Question // those of the Ask under way, nil if there is none
	read letters    // what the record had when it was last read meanwhile
	wake chan struct{}
	// until is when the time to answer is over, counted from the record's creation.
	until time.Duration
	made  int // how many keys were made here, so that each is made once (T39)
	// taken are questions whose answers the record need not have any more: they were
	// taken by this run, which has them.
	taken []string
}

// letters are what a run that waits for answers keeps of its record.
type letters struct {
	expires   time.Time
	questions []Question
}

func lettersOf(t Task) letters { return letters{t.ExpiresAt(), t.Questions} }

// Ask puts questions to the caller and waits until each is answered, withdrawn or
// out of time. The answers are marked as taken before they are returned: whoever
// adopts the call never delivers them again.
func (r *run) Ask(ctx context.Context, q ...Question) ([]Answer, error) {
	if r.call.Asking == AskNever || len(q) == 0 {
		return nil, ErrNoAsk
	}
	// This goroutine now waits for long, so everything else is done aside.
	err := aside(func() error { return r.pose(ctx, q) })
	if errors.Is(err, errUnanswered) { // the store was away all the time
		return r.unposted(ctx, q)
	}
	if err != nil {
		return nil, err
	}
	defer r.hush()
	late, err := r.awaitAnswers(ctx, q)
	if err != nil {
		return nil, err
	}
	var answers []Answer
	err = aside(func() error {
		t, err := r.take(ctx, q)
		if err == nil && late {
			r.unheard(t, q)
		}
		answers = taken(t, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// pose stores questions and brings them to the caller.
func (r *run) pose(ctx context.Context, q []Question) error {
	t, turn, err := r.post(ctx, q)
	if err == nil {
		r.deliver(t, turn, q)
	}
	return err
}

// awaitAnswers waits until no question is open any more. late says that their time was
// over before. Questions that the store has forgotten, in a failover, are asked again: nobody
// else can see them.
func (r *run) awaitAnswers(ctx context.Context, q []Question) (late bool, err error) {
	timer := time.NewTimer(r.timeToAnswer())
	defer timer.Stop()
	for {
		open, forgotten := r.awaits(q)
		switch {
		case forgotten:
			err := aside(func() error { return r.pose(ctx, q) })
			if errors.Is(err, errUnanswered) {
				return true, nil
			}
			if err != nil {
				return false, err
			}
			continue
		case !open:
			return false, nil
		}
		select {
		case <-r.box.wake:
		case <-timer.C:
			return true, nil
		case <-ctx.Done():
			r.withdraw(q)
			return false, context.Cause(ctx)
		}
	}
}

// unposted ends questions that could not be stored in time. The store may have them all
// the same, and with them a round: then it has to have the end of that before the retry is
// sent, or whoever adopts the call sends another.
func (r *run) unposted(ctx context.Context, q []Question) ([]Answer, error) {
	switch {
	case !r.stored():
		return noneOf(q), nil
	case r.round == nil:
		r.withdraw(q)
		return noneOf(q), nil
	}
	t, err := r.take(ctx, q)
	if err != nil {
		return nil, err
	}
	return taken(t, q), nil
}

// noneOf are the answers to questions that nobody could be asked in time.
func noneOf(q []Question) []Answer {
	answers := make([]Answer, len(q))
	for i := range q {
		answers[i] = Unanswered(q[i], "the client could not be asked")
	}
	return answers
}

// awaits reports whether any of the questions asked is still open, as the record was
// last read, and whether it does not have one of them.
func (r *run) awaits(asked []Question) (open, forgotten bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range asked {
		q, ok := find(r.box.read.questions, asked[i].Key)
		open, forgotten = open || ok && q.Outstanding(), forgotten || !ok
	}
	return open, forgotten
}

func (r *run) inputTimeout() time.Duration {
	return cmp.Or(r.policy.InputTimeout, defaultInputTimeout)
}

// post stores the questions, in the record that the call has or in one that it gets
// for them. An outage of the store is waited out, as long as there is time to answer. It
// returns the record after that, and the turn of reading it before.
func (r *run) post(ctx context.Context, q []Question) (t Task, turn int64, err error) {
	again := r.asking()
	patience := r.inputTimeout()
	if again {
		patience = r.timeToAnswer()
	}
	ctx, stop := context.WithTimeoutCause(ctx, patience, errUnanswered)
	defer stop()
	err = r.s.retry(ctx, func(context.Context) error {
		_, err := r.keep(r.asksInTask())
		return err
	})
	if err != nil {
		return Task{}, 0, err
	}
	if r.round != nil {
		// An adopter goes on after the round, and nothing from before it is said again.
		r.drainBatches(ctx)
	}
	r.mu.Lock()
	if r.round != nil {
		r.round.noted = true
	}
	hidden := r.task.hidden
	if !again && !r.asksAgain(q) {
		r.box.until = time.Since(r.task.born) + r.inputTimeout()
	}
	change := Change{Ask: q, Call: r.callRecord(true), Forget: r.box.taken}
	if hidden {
		change.TTL = r.box.until + abandonAfter + hiddenRetain
	}
	turn = r.reading.turn
	r.mu.Unlock()
	t, err = r.apply(ctx, func() Change { return change })
	if err == nil {
		r.forgot(change.Forget)
	}
	return t, turn, err
}

// forgettable adds questions whose answers the record is to forget, with the next change
// that is made of it anyway, and returns all of them.
func (r *run) forgettable(keys ...string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.box.taken = slices.Concat(r.box.taken, keys)
	return r.box.taken
}

// forgot notes that the record has forgotten them.
func (r *run) forgot(keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.box.taken = slices.DeleteFunc(slices.Clone(r.box.taken), func(key string) bool { return slices.Contains(keys, key) })
}

// asking reports whether questions were posted already, and their time is running.
func (r *run) asking() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.box.open != nil
}

// asksInTask reports whether the caller is asked in a task: in the one there is, or
// in one that its policy has made for the question (H16).
func (r *run) asksInTask() bool {
	if r.call.Demand {
		return true
	}
	return r.call.Handle && r.policy.Tasks != Never && r.policy.EarlyInput != EarlyMRTR
}

// asksAgain reports whether these are the questions that the runner before this one
// had open: then their time goes on. r.mu is held.
func (r *run) asksAgain(q []Question) bool {
	for i := range q {
		if _, ok := find(r.task.made.Questions, q[i].Key); !ok {
			return false
		}
	}
	return r.box.until > 0
}

// timeToAnswer is what is left of it.
func (r *run) timeToAnswer() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.box.until - time.Since(r.task.born)
}

// deliver brings the questions to a caller who waits: on its stream, or by handing
// the call back. Who reads the task finds them there. The answer may have come already: a
// state that was read since that turn may be newer than the record as post left it, so it
// is read again.
func (r *run) deliver(t Task, turn int64, q []Question) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitMaking() // a task that is being made of the call asks by itself
	var open []Question
	for i := range q {
		if stored, ok := find(t.Questions, q[i].Key); ok && stored.Outstanding() {
			open = append(open, stored)
		}
	}
	r.box.open, r.box.read = open, lettersOf(t)
	if r.reading.turn != turn {
		r.reread()
	}
	r.reading.turn++
	r.spare() // there is time to answer again
	if asker, ok := r.stream.(Asker); ok && r.task.hidden && r.call.Asking == AskStream && len(open) > 0 {
		asker.Ask(r.task.id, open)
	}
	signal(r.news)
}

// hush ends an Ask.
func (r *run) hush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.box.open, r.box.read = nil, letters{}
}

// heard takes the state that another replica, or a caller, has given to the record. r.mu
// is held.
func (r *run) heard(t Task) {
	switch {
	case t.Visible && r.task.hidden && r.making == nil:
		r.appear(t)
	case !t.Visible && !r.task.hidden: // a failover has lost that it became a task
		r.s.work.Go(r.reveal)
	}
	if r.box.open != nil {
		r.box.read = lettersOf(t)
		signal(r.box.wake)
	}
}

// signal wakes one waiter; signals that nobody has seen yet are one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// withdraw ends questions that the server no longer waits for. If the call itself has
// ended, so has its record, or it is somebody else's.
func (r *run) withdraw(q []Question) {
	if r.ctx.Err() != nil {
		return
	}
	keys := keysOf(q)
	r.mu.Lock()
	r.tellWithdrawn(slices.DeleteFunc(keysOf(q), func(key string) bool {
		stored, ok := find(r.box.read.questions, key)
		return !ok || !stored.Outstanding()
	}))
	r.mu.Unlock()
	// An answer that has come all the same is for nobody any more.
	change := Change{Op: r.s.op(), Withdraw: keys, Take: keys}
	r.s.work.Go(func() {
		if r.persist(r.ctx, func() Change { return change }) == nil {
			r.forgettable(keys...)
		}
	})
}

// unheard notes that the time to answer is over, and says so of what has no answer: one
// that came until the record was closed counts. A parked call whose caller never came
// back gets a moment to end by itself.
func (r *run) unheard(t Task, q []Question) {
	var none []string
	for i := range q {
		if stored, ok := find(t.Questions, q[i].Key); ok && stored.Answer == nil {
			none = append(none, q[i].Key)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellWithdrawn(none)
	if r.task.hidden && !r.attended {
		r.abandonLater(abandonAfter)
	}
}

// abandonLater gives a parked call d more: it ends unless its caller is there by then, or
// has been asked something else. r.mu is held.
func (r *run) abandonLater(d time.Duration) {
	r.spare()
	var timer *time.Timer
	timer = r.s.later(d, func() {
		more := r.awaited()
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.task.abandon != timer, r.ctx.Err() != nil:
			return
		case !r.task.hidden || r.attended:
			r.task.abandon = nil
		case more > 0:
			r.abandonLater(more)
		default:
			r.task.abandon = nil
			r.cancel(errAbandoned)
		}
	})
	r.task.abandon = timer
}

// awaited is for how much longer a caller may be there on another replica, who has the
// record kept for as long (visit.attend). The record, and not a message, says so.
func (r *run) awaited() time.Duration {
	var t Task
	err := r.s.within(r.ctx, func(ctx context.Context) (err error) {
		t, err = r.s.store.Get(ctx, r.task.id, Summary)
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return 0
	case err != nil:
		return retryAbandon
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Visible && r.task.hidden { // and nobody here has heard of it
		r.reread()
		return retryAbandon
	}
	own := max(r.task.raised, r.box.until+abandonAfter+hiddenRetain)
	if t.TTL <= own+time.Millisecond { // the store rounds up
		return 0
	}
	return t.TTL - hiddenRetain - time.Since(r.task.born)
}

// spare takes back what abandonLater began. r.mu is held.
func (r *run) spare() {
	if r.task.abandon != nil {
		r.task.abandon.Stop()
		r.task.abandon = nil
	}
}

// tellWithdrawn tells the stream that had the questions that nobody waits for them. r.mu
// is held.
func (r *run) tellWithdrawn(keys []string) {
	if asker, ok := r.stream.(Asker); ok && r.task.hidden && len(keys) > 0 {
		asker.Withdrawn(r.task.id, keys)
	}
}

// take ends the questions in one step: what is open is withdrawn, what is answered
// is this run's to deliver, and nobody else's from then on. It returns the record after
// that.
func (r *run) take(ctx context.Context, q []Question) (Task, error) {
	keys := keysOf(q)
	change := Change{Op: r.s.op(), Withdraw: keys, Take: keys, Call: r.endRound()}
	change.Durable = change.Call != nil // the retry is sent next, and only once
	t, err := r.apply(ctx, func() Change { return change })
	if err == nil {
		r.forgettable(keys...)
	}
	return t, err
}

// taken are the answers that take has made this run's.
func taken(t Task, q []Question) []Answer {
	answers := make([]Answer, len(q))
	for i := range q {
		stored, _ := find(t.Questions, q[i].Key)
		switch {
		case stored.Answer == nil:
			answers[i] = Unanswered(q[i], "the client did not answer in time")
		case stored.Taken:
			answers[i] = decodeAnswer(stored.Answer)
		default:
			// The runner before this one took it. Whether the server has it is not
			// known, and it must not get it twice.
			answers[i] = Unanswered(q[i], "the answer was lost with the replica that had it")
		}
	}
	return answers
}
