package runner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"taskgate/internal/semconv"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// mailbox is the runner's side of questions: it brings a server's questions into the record of its
// call, and the answers out of it (design.md 0.18). What is known of a
// question here is in the copy of the record. A caller that is asked before its call is a task
// has a hidden record for that. The run owns the mailbox; run.mu guards all but wake.
type mailbox struct {
	run   *Run
	asked []string // keys of the questions of the current Ask, once they are delivered; nil between two
	gone  []string // keys of questions that the server has withdrawn
	// given are questions of the current Ask with answers that a read of the record has found: they count even if the
	// store has forgotten them.
	given []shim.Question
	wake  chan struct{}
	since time.Time // when the open questions were delivered to the caller; zero before
	// until is the deadline of the open questions: when they were asked plus the timeout, counted from
	// the creation of the record.
	until time.Duration
	made  int // how many keys were made here, so that each is made once (T39)
}

// askQuestions puts questions to the caller and waits until each is answered, withdrawn or out of time.
// The answers are marked as taken before they are returned, so they are delivered at most once, also
// after an adoption.
func (b *mailbox) askQuestions(ctx context.Context, q []shim.Question) ([]shim.Answer, error) {
	if b.run.Call.Asking == shim.AskNever || len(q) == 0 || !b.run.keeping.hasRoomToAsk(shim.BytesOf(q)) {
		return nil, shim.ErrNoAsk
	}
	var settled func(how []string)
	again := b.asksAgain(q)
	// This goroutine then waits for long, so all other work is done apart.
	err := work.Apart(func() error {
		err := b.storeQuestions(ctx, q)
		if err == nil {
			settled = b.run.Observed.noteAsked(q, again)
		}
		return err
	})
	if errors.Is(err, shim.ErrUnanswered) { // the store was away all the time
		return b.neverStored(ctx, q)
	}
	if err != nil {
		b.withdrawQuestions(shim.KeysOf(q)) // an attempt may have stored them
		return nil, err
	}
	defer b.endAsk()
	late, err := b.awaitAnswers(ctx, q)
	if err == nil {
		err = b.run.rounds.takePlace()
	}
	var answers []shim.Answer
	err = work.Apart(func() error {
		var how []string
		if err == nil {
			answers, how, err = b.collectAnswers(ctx, q, late)
		}
		settled(how)
		return err
	})
	return answers, err
}

// awaitAnswers waits until all questions are closed. late says that their time ran out first. Questions
// that the store has forgotten in a failover are asked again, because only this run still has them.
func (b *mailbox) awaitAnswers(ctx context.Context, q []shim.Question) (late bool, err error) {
	timer := time.NewTimer(b.timeLeft())
	defer timer.Stop()
	for {
		open, forgotten := b.checkAsked(q)
		switch {
		case forgotten != nil:
			err := work.Apart(func() error { return b.storeQuestions(ctx, forgotten) })
			if errors.Is(err, shim.ErrUnanswered) {
				return true, nil
			}
			if err != nil {
				b.withdrawQuestions(shim.KeysOf(q))
				return false, err
			}
			continue
		case !open:
			return false, nil
		}
		// A read of the record, which an event asks for, wakes it; if the event is lost, the audit does
		// within Parts beats (27 s).
		select {
		case <-b.wake:
		case <-timer.C:
			return true, nil
		case <-ctx.Done():
			b.withdrawQuestions(shim.KeysOf(q))
			return false, context.Cause(ctx)
		}
	}
}

// neverStored ends questions that the store did not take in time. A write may have got through although
// its reply was lost. If it began a round, the end of the round must be stored before the retry goes
// out, or an adopter of the call sends another one.
func (b *mailbox) neverStored(ctx context.Context, q []shim.Question) ([]shim.Answer, error) {
	switch {
	case b.run.RecordID() == "":
		return notAsked(q), nil
	case b.run.rounds.open == nil:
		b.withdrawQuestions(shim.KeysOf(q))
		return notAsked(q), nil
	}
	if err := b.run.rounds.takePlace(); err != nil {
		return nil, err
	}
	answers, _, err := b.collectAnswers(ctx, q, false)
	return answers, err
}

// notAsked returns the stand-ins for the answers to undelivered questions.
func notAsked(q []shim.Question) []shim.Answer {
	answers := make([]shim.Answer, len(q))
	for i := range q {
		answers[i] = shim.Unanswered(q[i], "the client could not be asked")
	}
	return answers
}

// checkAsked reports whether any of the questions asked is still open, by the last read of the record,
// and which of them the record lacks.
func (b *mailbox) checkAsked(asked []shim.Question) (open bool, forgotten []shim.Question) {
	b.run.mu.Lock()
	defer b.run.mu.Unlock()
	for i := range asked {
		if slices.Contains(b.gone, asked[i].Key) {
			continue
		}
		q, ok := shim.FindQuestion(b.run.record.Questions, asked[i].Key)
		open = open || ok && q.Outstanding()
		if !ok {
			forgotten = append(forgotten, asked[i])
		}
	}
	return open, forgotten
}

// answerTimeout returns how long a question waits for its answer. By default a question of a task waits
// for as long as an ended task is kept. run.mu is held.
func (b *mailbox) answerTimeout() time.Duration {
	r := b.run
	inTask := b.asksInTask() || r.record.Visible
	if r.policy.InputTimeout == 0 && inTask {
		return cmp.Or(node.RetainFor(r.Call, r.policy), shim.DefaultInputTimeout)
	}
	return cmp.Or(r.policy.InputTimeout, shim.DefaultInputTimeout)
}

// storeQuestions stores the questions, in the call's record or in a new one, and delivers them to the
// caller. An outage of the store is waited out until the deadline of the answers; while a caller
// blocks, for two times StoreTimeout, since a first attempt may go out on a dead connection.
func (b *mailbox) storeQuestions(ctx context.Context, q []shim.Question) error {
	r := b.run
	r.mu.Lock()
	again, left := b.asked != nil, b.answerTimeout() // again: they were delivered already, and their time is running
	r.mu.Unlock()
	if again {
		left = b.timeLeft()
	}
	if r.hasWaitingCaller() {
		left = min(left, 2*r.core.StoreTimeout)
	}
	ctx, stop := context.WithTimeoutCause(ctx, left, shim.ErrUnanswered)
	defer stop()
	_, err := node.RetryUntil(ctx, isNoRecord, func(context.Context) (shim.Task, error) { return r.Creation.EnsureRecord(b.asksInTask()) })
	if err != nil {
		return err
	}
	_, err = r.record.applyWithPieces(ctx, func() shim.Change { return b.questionChange(q, again) }, func() { b.deliverQuestions(q) })
	if err == nil {
		r.Caller.askOnStream(shim.KeysOf(q))
	}
	return err
}

// isNoRecord reports whether an error says that a call gets no record.
func isNoRecord(err error) bool {
	_, busy := errors.AsType[*shim.BusyError](err)
	return busy || errors.Is(err, errEnded) || node.IsAnswer(err)
}

// questionChange returns the change of the record that asks. With again the deadline stays as it is. run.mu is held.
func (b *mailbox) questionChange(q []shim.Question, again bool) shim.Change {
	r := b.run
	r.rounds.noteOpen()
	again = again || b.goesOn(q)
	if !again {
		b.until = time.Since(r.record.born) + b.answerTimeout()
	}
	change := shim.Change{Ask: shim.WithoutKeys(q, b.gone), Call: r.callRecord(true)}
	if !again {
		change.Moments = []shim.Moment{{Kind: shim.KindAsked, Detail: shim.MethodsOf(q)}}
	}
	if r.record.isHidden() {
		r.record.TTL = max(r.record.TTL, b.until+shim.ComeBack)
		change.TTL = r.record.TTL
	}
	return change
}

// asksInTask reports whether the caller is asked in a task: in the present one, or in one that its
// policy makes for the question (H16).
func (b *mailbox) asksInTask() bool {
	call, policy := &b.run.Call, &b.run.policy
	return call.Demand || call.Handle && policy.Tasks != shim.Never && policy.EarlyInput != shim.EarlyMRTR
}

// asksAgain reports whether these are open questions of the previous runner.
func (b *mailbox) asksAgain(q []shim.Question) bool {
	b.run.mu.Lock()
	defer b.run.mu.Unlock()
	return b.goesOn(q)
}

// goesOn is asksAgain with run.mu held. The time of such questions goes on.
func (b *mailbox) goesOn(q []shim.Question) bool {
	for i := range q {
		if _, ok := shim.FindQuestion(b.run.record.Questions, q[i].Key); !ok {
			return false
		}
	}
	return b.until > 0
}

func (b *mailbox) timeLeft() time.Duration {
	b.run.mu.Lock()
	defer b.run.mu.Unlock()
	return b.until - time.Since(b.run.record.born)
}

// deliverQuestions has a waiting caller look at the questions, to hand the call back. Readers of the task find them in
// the record. run.turn and run.mu are held.
func (b *mailbox) deliverQuestions(q []shim.Question) {
	r := b.run
	if b.asked == nil {
		b.asked, b.since = shim.KeysOf(q), time.Now()
	}
	work.Signal(r.Caller.news)
}

// openQuestions returns those of the current Ask that wait for an answer. run.mu is held.
func (b *mailbox) openQuestions() (open []shim.Question) {
	for _, key := range b.asked {
		if q, ok := shim.FindQuestion(b.run.record.Questions, key); ok && q.Outstanding() && !slices.Contains(b.gone, key) {
			open = append(open, q)
		}
	}
	return open
}

func (b *mailbox) endAsk() {
	b.run.mu.Lock()
	defer b.run.mu.Unlock()
	b.asked, b.gone, b.given, b.since = nil, nil, nil, time.Time{}
}

// withdrawQuestions ends questions that the server has given up: some of the current Ask, or all. If
// the call itself has ended, its record has ended too, or belongs to another runner.
func (b *mailbox) withdrawQuestions(keys []string) {
	r := b.run
	r.mu.Lock()
	open := b.openQuestions()
	b.gone = slices.Concat(b.gone, keys)
	work.Signal(b.wake)
	kept := r.record.exists() && r.Ctx.Err() == nil
	r.mu.Unlock()
	if !kept {
		return
	}
	r.Caller.tellWithdrawn(slices.DeleteFunc(shim.KeysOf(open), func(key string) bool { return !slices.Contains(keys, key) }))
	// An answer that has come all the same is dropped.
	change := shim.Change{Op: r.core.NewOp(), Withdraw: keys, Take: keys}
	r.core.Life.Work.Go(func() { _, _ = r.record.applyChange(r.Ctx, func() shim.Change { return change }) })
}

// expireQuestions takes back the questions whose time ran out. An answer that was stored before
// collectAnswers is still used, although the timer has fired.
func (b *mailbox) expireQuestions(t shim.Task, q []shim.Question) {
	var none []string
	for i := range q {
		if stored, ok := shim.FindQuestion(t.Questions, q[i].Key); ok && stored.Answer == nil {
			none = append(none, q[i].Key)
		}
	}
	b.run.Caller.tellWithdrawn(none)
}

// collectAnswers ends the questions in one step: open ones are withdrawn, and the answers of the others
// are taken, so that only this run delivers them. late says that the time to answer is over. how says
// of each question how it ended.
func (b *mailbox) collectAnswers(ctx context.Context, q []shim.Question, late bool) (answers []shim.Answer, how []string, err error) {
	keys := shim.KeysOf(q)
	change := shim.Change{Op: b.run.core.NewOp(), Withdraw: keys, Take: keys, Call: b.run.rounds.endRound()}
	change.Durable = change.Call != nil // the retry is sent next, and only once
	t, err := b.run.record.applyChange(ctx, func() shim.Change { return change })
	if err != nil {
		return nil, nil, err
	}
	b.run.Token.awaitToken(t)
	b.run.mu.Lock()
	t.Questions = b.withGiven(t.Questions)
	gone := b.gone
	b.run.mu.Unlock()
	if late {
		b.expireQuestions(t, q)
		b.run.Observed.noteMoment(shim.KindWithdrawn, "nobody answered in time")
		b.run.outbox.setMessage("nobody answered in time: " + clipText(shim.TextOf(q[0])))
	}
	answers, how = answersIn(t, q)
	for i := range q {
		if slices.Contains(gone, q[i].Key) {
			how[i] = semconv.QuestionWithdrawn
		}
	}
	return answers, how, nil
}

// answersIn returns the answers that collectAnswers has taken, and how each question ended.
func answersIn(t shim.Task, q []shim.Question) (answers []shim.Answer, how []string) {
	answers, how = make([]shim.Answer, len(q)), make([]string, len(q))
	for i := range q {
		stored, _ := shim.FindQuestion(t.Questions, q[i].Key)
		switch {
		case stored.Answer == nil:
			answers[i], how[i] = shim.Unanswered(q[i], "the client did not answer in time"), semconv.QuestionExpired
		case stored.Taken:
			answers[i], how[i] = shim.DecodeAnswer(stored.Answer), semconv.QuestionAnswered
			if answers[i].Error != nil {
				how[i] = semconv.QuestionRefused
			}
		default:
			// The previous runner took the answer. The server may have it, and must not get it twice.
			answers[i], how[i] = shim.Unanswered(q[i], "the answer was lost with the replica that had it"), semconv.QuestionLost
		}
	}
	return answers, how
}

// gatherAnswers keeps the untaken answers that a read of the record has found. run.mu is held.
func (b *mailbox) gatherAnswers(t shim.Task) {
	for _, q := range t.Questions {
		if _, has := shim.FindQuestion(b.given, q.Key); b.asked != nil && q.Answer != nil && !q.Taken && !has {
			b.given = append(b.given, shim.Question{Key: q.Key, Answer: q.Answer, Taken: true})
		}
	}
}

// withGiven returns questions of the record, with the given answers in place of theirs. run.mu is held.
func (b *mailbox) withGiven(questions []shim.Question) []shim.Question {
	if len(b.given) == 0 {
		return questions
	}
	return append(shim.WithoutKeys(questions, shim.KeysOf(b.given)), b.given...)
}
