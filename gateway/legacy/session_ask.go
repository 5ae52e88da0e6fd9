package legacy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// A task's questions are asked on one stream of a legacy session: on its GET stream if it has one, and on
// a tasks/result otherwise (L32, protocol.md C 3). The step that puts a question into the log of a stream
// also claims it (Logs.Ask), and the log says whether that stream still lives. docs/design/sessions.md has
// the cases.

const (
	// getFirst is how long a tasks/result leaves a question to the session's GET stream, from the last
	// change of the task before the question was seen.
	getFirst = 2 * time.Second
	// holderCheck is how often an asker checks whether the stream that has a question lives: as often as a
	// client that has resumed a stream is told that its replica is gone.
	holderCheck = resumeCheck
	// storeAgain is the pause before a store that was away is asked again.
	storeAgain = time.Second
)

// askLine is the stream on which an asker asks.
type askLine struct {
	// ask puts a question into the log of the stream, from where it goes out; see Logs.Ask.
	ask func(ctx context.Context, name, void string, message []byte) (holder string, has bool, err error)
	// over tells the client that a question is over.
	over func(message []byte)
}

// asker asks the client of one stream the questions of tasks, of a call and of the server. Whoever follows those calls
// tells it what is open; a goroutine that begins with the first question does the slow work.
type asker struct {
	s    *session
	ctx  context.Context // of the stream
	line askLine
	late bool // it leaves questions to the GET stream for a while
	work sync.WaitGroup

	mu    sync.Mutex
	calls map[shim.ID][]*question // by their call, in its order
	wake  chan struct{}           // nil before the goroutine begins
}

// question is all that a stream knows of a question. asker.mu guards it.
type question struct {
	shim.Question
	call   shim.ID
	task   bool      // the call is a task
	open   bool      // its answer is waited for, as far as this stream has heard
	since  time.Time // since when it is open at the latest
	asked  bool      // the client may answer it on this stream
	holder string    // another stream that has it; "" for none
	dead   bool      // the last check has found the holder dead
}

// newAsker makes an asker for a stream whose client has been asked these questions before.
func newAsker(ctx context.Context, s *session, asked []*question, line askLine) *asker {
	a := &asker{s: s, ctx: ctx, line: line, calls: make(map[shim.ID][]*question)}
	for _, q := range asked {
		a.calls[q.call] = append(a.calls[q.call], q)
	}
	return a
}

// takeState takes the state of a task. The client is told at once which questions are over.
func (a *asker) takeState(t shim.Task) {
	a.mu.Lock()
	var over [][]byte
	for _, q := range t.Questions {
		switch {
		case q.Outstanding() && !t.Status.Final():
			at := a.openQuestion(t.ID, q)
			at.task = t.Visible
			if t.UpdatedAt.Before(at.since) { // it was asked before that
				at.since = t.UpdatedAt
			}
		case q.Answer == nil:
			over = append(over, a.closeQuestions(t.ID, q.Key)...)
		default:
			a.closeQuestions(t.ID, q.Key)
		}
	}
	for _, at := range a.calls[t.ID] { // the store may have come back older: the client still has what it lacks
		_, named := shim.FindQuestion(t.Questions, at.Key)
		at.open = at.open && named
	}
	if t.Status.Final() {
		delete(a.calls, t.ID)
	}
	a.mu.Unlock()
	a.tellOver(over)
}

// openQuestion notes that a question waits for its answer, and has it asked if it is new to the client. The caller
// holds a.mu.
func (a *asker) openQuestion(call shim.ID, q shim.Question) *question {
	i := slices.IndexFunc(a.calls[call], func(at *question) bool { return at.Key == q.Key })
	if i < 0 {
		i = len(a.calls[call])
		a.calls[call] = append(a.calls[call], &question{call: call})
	}
	at := a.calls[call][i]
	if at.Question = q; !at.open {
		at.open, at.since = true, time.Now()
	}
	if a.wake == nil && a.ctx.Err() == nil {
		a.wake = make(chan struct{}, 1)
		a.work.Go(a.askUntilEnd)
	}
	work.Signal(a.wake)
	return at
}

// closeQuestions forgets questions of a call that are over. It returns the messages that take back those which the
// client may still answer. The caller holds a.mu.
func (a *asker) closeQuestions(call shim.ID, keys ...string) (over [][]byte) {
	a.calls[call] = slices.DeleteFunc(a.calls[call], func(at *question) bool {
		found := slices.Contains(keys, at.Key)
		if found && at.asked {
			over = append(over, questionOver(call, at.Key))
		}
		at.open = at.open && !found
		return found
	})
	if len(a.calls[call]) == 0 {
		delete(a.calls, call)
	}
	return over
}

// addQuestions adds questions of a call. With again they are asked once more, whatever the client has heard.
func (a *asker) addQuestions(call shim.ID, questions []shim.Question, again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range questions {
		at := a.openQuestion(call, q)
		at.asked = at.asked && !again
	}
}

// withdrawQuestions takes questions of a call back.
func (a *asker) withdrawQuestions(call shim.ID, keys []string) {
	a.mu.Lock()
	over := a.closeQuestions(call, keys...)
	a.mu.Unlock()
	a.tellOver(over)
}

// giveUp forgets all questions, and returns those that wait for an answer.
func (a *asker) giveUp() (open []question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.openQuestions() {
		open, at.open = append(open, *at), false
	}
	clear(a.calls)
	return open
}

// openQuestions are those that wait for an answer. The caller holds a.mu.
func (a *asker) openQuestions() (open []*question) {
	for _, all := range a.calls {
		for _, at := range all {
			if at.open {
				open = append(open, at)
			}
		}
	}
	return open
}

func (a *asker) tellOver(over [][]byte) {
	for _, message := range over {
		a.line.over(message)
	}
}

// askUntilEnd asks all open questions until the stream ends.
func (a *asker) askUntilEnd() {
	check := time.NewTicker(holderCheck)
	defer check.Stop()
	for checks := false; ; {
		again := a.askAll(checks)
		var pause <-chan time.Time
		if again > 0 {
			pause = time.After(again)
		}
		checks = false
		// The follower of the tasks wakes it, after 30 s at the latest; it checks by itself each
		// holderCheck whether the stream that has a question lives.
		select {
		case <-a.wake:
		case <-pause:
		case <-check.C:
			checks = true
		case <-a.ctx.Done():
			return
		}
	}
}

// askAll is one round over all open questions. It returns the time until the next round, 0 if none is
// needed. With checks it also checks the streams that have a question.
func (a *asker) askAll(checks bool) (again time.Duration) {
	a.mu.Lock()
	open := a.openQuestions()
	a.mu.Unlock()
	able := shim.Session{Capabilities: translate.Answerable(a.s.currentState().Capabilities)}
	for _, at := range open {
		if more := a.askOne(at, able, checks); more > 0 && (again == 0 || more < again) {
			again = more
		}
	}
	return again
}

// askOne asks a question that is new to the client. It asks for another try while the store is away: an
// unchanged task is reported only once.
func (a *asker) askOne(at *question, able shim.Session, checks bool) (again time.Duration) {
	a.mu.Lock()
	q := *at
	a.mu.Unlock()
	if !q.open || !reading.MayAsk(able, q.Method, q.Params) { // it may be over since the round began
		return 0
	}
	void := ""
	switch {
	case q.asked, q.holder != "" && !checks:
		return 0
	case q.holder != "": // it has to be found dead twice: its client may be about to resume it
		dead := a.isDead(q.holder)
		a.mu.Lock()
		at.dead = dead
		a.mu.Unlock()
		if !q.dead || !dead {
			return 0
		}
		void = q.holder
	case a.late:
		if left := time.Until(q.since.Add(getFirst)); left > 0 && (a.s.isAttached() || a.s.isElsewhere(a.ctx)) {
			return left
		}
	}
	name, message := questionName(q.call, q.Key), questionRequest(q.call, q.Question, q.task)
	holder, has, err := a.line.ask(a.ctx, name, void, message)
	if err == nil && holder != "" && !has && q.holder == "" && a.isDead(holder) {
		holder, has, err = a.line.ask(a.ctx, name, holder, message)
	}
	switch {
	case err != nil:
		return storeAgain
	case a.notePlaced(at, holder, has):
		a.line.over(questionOver(q.call, q.Key))
	}
	return 0
}

// notePlaced notes where a question is. It reports whether this stream has asked it and it is over by now.
func (a *asker) notePlaced(at *question, holder string, has bool) (over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at.dead = false
	if at.holder = holder; has {
		at.holder = ""
	}
	at.asked = at.holder == ""
	return !at.open && holder == ""
}

// isDead reports whether a stream of the session is over; false while the store is away.
func (a *asker) isDead(stream string) bool {
	state, _, err := a.s.table.store.State(a.ctx, a.s.id, stream)
	return err == nil && state != "open"
}

// readQuestion returns the question that a message to a client asks or, with over, takes back.
func readQuestion(message []byte) (call shim.ID, key string, over, ok bool) {
	method, ok := jsonrpc.GetString(message, "method")
	if !ok {
		return "", "", false, false
	}
	path := []string{"id"}
	if over = method == mcp.NotifyCancelled; over {
		path = []string{"params", "requestId"}
	}
	raw, _ := jsonrpc.Get(message, path...)
	id, err := jsonrpc.ParseID(raw)
	if err != nil {
		return "", "", false, false
	}
	call, key, ok = parseQuestionID(id)
	return call, key, over && ok, ok
}

// questionsOf are the questions that a log asks and does not take back. The client of the stream has them,
// or gets them from there.
func questionsOf(log []logEntry) (asked []*question) {
	for _, m := range log {
		call, key, over, ok := readQuestion(m.message)
		same := func(q *question) bool { return q.call == call && q.Key == key }
		switch {
		case over:
			asked = slices.DeleteFunc(asked, same)
		case ok && !slices.ContainsFunc(asked, same):
			asked = append(asked, &question{Question: shim.Question{Key: key}, call: call, asked: true})
		}
	}
	return asked
}

// questionName names a question of a stored call.
func questionName(call shim.ID, key string) string { return string(call) + "/" + key }

func questionID(call shim.ID, key string) jsonrpc.ID {
	return jsonrpc.StringID(questionName(call, key))
}

// parseQuestionID reads an id of questionID; ok is false for any other one.
func parseQuestionID(id jsonrpc.ID) (call shim.ID, key string, ok bool) {
	text, _ := jsonrpc.GetString([]byte(id.Raw()))
	text, key, ok = strings.Cut(text, "/")
	call, err := shim.ParseID(text)
	return call, key, ok && err == nil
}

// questionRequest is a question as a request to the client. The question of a task names its task (L31);
// the upstream's own related-task means nothing here (H14).
func questionRequest(call shim.ID, q shim.Question, task bool) []byte {
	id := questionID(call, q.Key)
	params := jsonrpc.WithoutEmpty(translate.Unrelated(q.Params), "_meta")
	if mode, _ := jsonrpc.GetString(params, "mode"); q.Method == mcp.MethodElicit && mode == "url" {
		// A legacy client needs an id of the elicitation; a modern server gives none (protocol.md 7.4).
		params = jsonrpc.WithDefault(params, json.RawMessage(id.Raw()), "elicitationId")
	}
	if task {
		if params == nil {
			params = json.RawMessage(`{}`)
		}
		params = dialect.Legacy.Related(params, call)
	}
	return jsonrpc.AppendRequest(nil, id, q.Method, params)
}

// questionOver tells a client that the question is over.
func questionOver(call shim.ID, key string) []byte {
	return mcp.AppendCancelled(nil, questionID(call, key), "the server no longer waits for an answer")
}
