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

// asker asks the client of one stream the questions of tasks and of the server. The code that follows
// those calls takeState; a goroutine that begins with the first question does the slow work.
type asker struct {
	s    *session
	ctx  context.Context // of the stream
	line askLine
	late bool // it leaves questions to the GET stream for a while
	work sync.WaitGroup

	mu     sync.Mutex
	tasks  map[shim.ID]shim.Task // the latest state of those with open questions
	places map[string]*place     // of these questions, by name
	wake   chan struct{}         // nil before the goroutine begins
}

// place is where an open question is. asker.mu guards it, but for since and dead, which only the goroutine uses.
type place struct {
	asked  bool      // the client may answer it on this stream
	holder string    // another stream that has it; "" for none
	since  time.Time // since when it is open at the latest; zero until the goroutine has seen it
	dead   bool      // the last check has found the holder dead
}

// newAsker makes an asker for a stream whose client has been asked these questions before.
func newAsker(ctx context.Context, s *session, asked map[string]bool, line askLine) *asker {
	a := &asker{s: s, ctx: ctx, line: line, tasks: make(map[shim.ID]shim.Task), places: make(map[string]*place)}
	for name := range asked {
		a.places[name] = &place{asked: true}
	}
	return a
}

// takeState takes the state of a task. The client is told at once which questions are over.
func (a *asker) takeState(t shim.Task) {
	a.mu.Lock()
	open := false
	for _, q := range t.Questions {
		open = open || q.Outstanding()
	}
	if a.tasks[t.ID] = t; !open || t.Status.Final() {
		delete(a.tasks, t.ID)
		open = false
	}
	over := a.forgetSettled(t)
	if open && a.wake == nil && a.ctx.Err() == nil {
		a.wake = make(chan struct{}, 1)
		a.work.Go(a.askUntilEnd)
	}
	if open {
		work.Signal(a.wake)
	}
	a.mu.Unlock()
	for _, message := range over {
		a.line.over(message)
	}
}

// forgetSettled forgets the questions of a task that are over. It returns the messages that take back
// those which the client may still answer. The caller holds a.mu.
func (a *asker) forgetSettled(t shim.Task) (over [][]byte) {
	for _, q := range t.Questions {
		if q.Outstanding() && !t.Status.Final() {
			continue
		}
		name := questionName(t.ID, q.Key)
		if at := a.places[name]; at != nil && at.asked && q.Answer == nil {
			over = append(over, questionOver(t.ID, q.Key))
		}
		delete(a.places, name)
	}
	return over
}

// forgetAsked has a question asked again.
func (a *asker) forgetAsked(call shim.ID, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.places[questionName(call, key)]; at != nil {
		at.asked = false
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
	tasks := make([]shim.Task, 0, len(a.tasks))
	for _, t := range a.tasks {
		tasks = append(tasks, t)
	}
	a.mu.Unlock()
	able := shim.Session{Capabilities: translate.Answerable(a.s.currentState().Capabilities)}
	for _, t := range tasks {
		for _, q := range t.Questions {
			if !q.Outstanding() || !reading.MayAsk(able, q.Method, q.Params) {
				continue
			}
			if more := a.askOne(t, q, checks); more > 0 && (again == 0 || more < again) {
				again = more
			}
		}
	}
	return again
}

// askOne asks a question that is new to the client. It asks for another try while the store is away: an
// unchanged task is reported only once.
func (a *asker) askOne(t shim.Task, q shim.Question, checks bool) (again time.Duration) {
	name := questionName(t.ID, q.Key)
	a.mu.Lock()
	if !a.isOpen(t.ID, q.Key) { // answered since the round began
		a.mu.Unlock()
		return 0
	}
	at := a.placeOf(name)
	asked, held := at.asked, at.holder
	a.mu.Unlock()
	if at.since.IsZero() {
		if at.since = time.Now(); t.UpdatedAt.Before(at.since) { // it was asked before that
			at.since = t.UpdatedAt
		}
	}
	void := ""
	switch {
	case asked, held != "" && !checks:
		return 0
	case held != "": // it has to be found dead twice: its client may be about to resume it
		before := at.dead
		if at.dead = a.isDead(held); !before || !at.dead {
			return 0
		}
		void = held
	case a.late:
		if left := time.Until(at.since.Add(getFirst)); left > 0 && (a.s.isAttached() || a.s.isElsewhere(a.ctx)) {
			return left
		}
	}
	message := questionRequest(t.ID, q, t.Visible)
	holder, has, err := a.line.ask(a.ctx, name, void, message)
	if err == nil && holder != "" && !has && held == "" && a.isDead(holder) {
		holder, has, err = a.line.ask(a.ctx, name, holder, message)
	}
	switch {
	case err != nil:
		return storeAgain
	case a.notePlaced(t.ID, q.Key, holder, has):
		a.line.over(questionOver(t.ID, q.Key))
	}
	return 0
}

// isOpen reports whether a question waits for its answer, as far as this stream has heard. The caller
// holds a.mu.
func (a *asker) isOpen(id shim.ID, key string) bool {
	return slices.ContainsFunc(a.tasks[id].Questions, func(q shim.Question) bool { return q.Key == key && q.Outstanding() })
}

// notePlaced notes where a question is. It reports whether this stream has asked it and it is over by now.
func (a *asker) notePlaced(id shim.ID, key, holder string, has bool) (over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.isOpen(id, key) {
		return holder == ""
	}
	at := a.placeOf(questionName(id, key))
	at.dead = false
	if at.holder = holder; has {
		at.holder = ""
	}
	at.asked = at.holder == ""
	return false
}

// placeOf finds or makes the place of a question. The caller holds a.mu.
func (a *asker) placeOf(name string) *place {
	if a.places[name] == nil {
		a.places[name] = &place{}
	}
	return a.places[name]
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
func questionsOf(log []logEntry) map[string]bool {
	asked := make(map[string]bool)
	for _, m := range log {
		switch call, key, over, ok := readQuestion(m.message); {
		case over:
			delete(asked, questionName(call, key))
		case ok:
			asked[questionName(call, key)] = true
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
