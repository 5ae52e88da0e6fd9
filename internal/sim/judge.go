package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// settle is how long after the end of a fault a call may still fail because of it.
const settle = 20 * time.Second

// Judge keeps the history of each call, and knows what is promised of it.
type Judge struct {
	mu     sync.Mutex
	begun  time.Time
	calls  map[string]*Call
	tasks  map[string]*Call // by the id of the task
	world  []event          // what happened to the deployment
	faults []*span
	wrong  []Verdict
	ends   map[string]int // how calls ended, and how many
}

// Verdict is a promise that was broken.
type Verdict struct {
	Sentence string
	Timeline string // of the call, and of the deployment meanwhile
}

// event is a line of a history.
type event struct {
	at        time.Time
	who, what string
}

// span is the time of a fault.
type span struct {
	from, to time.Time // to is zero as long as it lasts
	harms    Harm
}

// Harm says what a fault may do to a call, as a set.
type Harm int

// The harms. With each of them a call takes longer; an answer that no store has, and an unacknowledged call, may be lost.
const (
	// Ends: the runs of a replica end, and others go on with their calls.
	Ends Harm = 1 << iota
	// Breaks: the call at the server may be lost with its connection.
	Breaks
	// Forgets: the store forgets what came last.
	Forgets

	// Delays is no other harm, and Any each of them.
	Delays Harm = 0
	Any    Harm = -1
)

// Call is the history of one call.
type Call struct {
	j           *Judge
	token, kind string
	owner       string
	most        int // executions that its owner allows
	began       time.Time

	// Judge.mu guards what follows.
	events   []event
	made     [][]byte // the results that the server made, one of each execution
	got      []byte   // the result that its client has seen
	ended    string   // the final status that was seen
	stopped  bool     // a cancellation was acknowledged
	answered map[string]int
	again    int  // executions besides the first that somebody has asked for
	shared   bool // another principal makes the same call

	acknowledged bool                  // it is a task
	stops        time.Time             // when its client was about to cancel it; zero if it was not
	jobs         map[string]*following // of the server, that were asked for
}

func newJudge() *Judge {
	return &Judge{begun: time.Now(), calls: map[string]*Call{}, tasks: map[string]*Call{}, ends: map[string]int{}}
}

// Begin begins the history of a call. Its token is in its arguments and in all that is said about it.
func (j *Judge) Begin(token, kind, owner string, most int) *Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &Call{j: j, token: token, kind: kind, owner: owner, most: most, began: time.Now(), answered: map[string]int{}, jobs: map[string]*following{}}
	j.calls[token] = c
	return c
}

// find returns the call with a token, or nil.
func (j *Judge) find(token string) *Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.calls[token]
}

// Note tells what happened to the deployment.
func (j *Judge) Note(who, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.world = append(j.world, event{time.Now(), who, fmt.Sprintf(format, args...)})
}

// Fault notes the begin of a fault; end notes its end.
func (j *Judge) Fault(harms Harm, who, format string, args ...any) (end func()) {
	j.Note(who, format, args...)
	s := &span{from: time.Now(), harms: harms}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults = append(j.faults, s)
	return func() {
		j.Note(who, "this is over")
		j.mu.Lock()
		defer j.mu.Unlock()
		s.to = time.Now()
	}
}

// isDisturbed reports whether a fault with one of these harms has met a call that lasts until now. j.mu is held.
func (c *Call) isDisturbed(harms Harm) bool { return c.countFaults(harms) > 0 }

// countFaults counts the faults with one of these harms that have met a call which lasts until now. j.mu is held.
func (c *Call) countFaults(harms Harm) (n int) {
	for _, s := range c.j.faults {
		if (harms == Any || s.harms&harms != 0) && (s.to.IsZero() || s.to.Add(settle).After(c.began)) {
			n++
		}
	}
	return n
}

// hasForgotten reports whether the store has gone back.
func (j *Judge) hasForgotten() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.faults, func(s *span) bool { return s.harms&Forgets != 0 })
}

// disturbed reports whether anything has gone wrong that met the call.
func (c *Call) disturbed() bool {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	return c.isDisturbed(Any)
}

// Note adds a line to the history of the call.
func (c *Call) Note(who, format string, args ...any) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(who, fmt.Sprintf(format, args...))
}

func (c *Call) note(who, what string) {
	c.events = append(c.events, event{time.Now(), who, what})
}

// Blame says that a promise was broken.
func (c *Call) Blame(format string, args ...any) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.blame(format, args...)
}

func (c *Call) blame(format string, args ...any) {
	sentence := fmt.Sprintf("call %s (%s of %s): ", c.token, c.kind, c.owner) + fmt.Sprintf(format, args...)
	c.note("judge", sentence)
	c.j.wrong = append(c.j.wrong, Verdict{sentence, c.j.timeline(c)})
}

// Blame says that a promise about the deployment was broken.
func (j *Judge) Blame(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wrong = append(j.wrong, Verdict{Sentence: fmt.Sprintf(format, args...)})
}

// Verdicts lists the promises that were broken.
func (j *Judge) Verdicts() []Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.wrong)
}

// Execute notes that the server begins the work, with the result that it will make. It returns the number of this
// execution.
func (c *Call) Execute(server string, result func(run int) string) (string, int) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	run := len(c.made) + 1
	text := result(run)
	c.made = append(c.made, []byte(text))
	c.note(server, fmt.Sprintf("executes it, for the %d. time", run))
	if run > c.most && !c.isDisturbed(Forgets) {
		c.blame("it was executed %d times, and its owner allows %d", run, c.most)
	} else if run > 1+c.again && !c.isDisturbed(Any) {
		c.blame("it was executed again though nothing had gone wrong")
	}
	return text, run
}

// AskAgain notes that the call is made once more, as one that the server has to execute: its result will be another one.
func (c *Call) AskAgain() {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.again++
	c.got = nil
}

// Share notes that another principal is about to make the same call, and hears of it.
func (c *Call) Share() {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.shared = true
}

// Answer notes that the server got an answer to one of its questions.
func (c *Call) Answer(server, question, word string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	if word == "" {
		c.note(server, "hears that nobody answers "+question)
		if !c.isDisturbed(Any) {
			c.blame("nobody answered %s though nothing had gone wrong", question)
		}
		return
	}
	c.note(server, "gets "+word+" as the answer to "+question)
	if c.answered[question]++; c.answered[question] > 1 && !c.isDisturbed(Forgets) {
		c.blame("the answer to %s was delivered %d times", question, c.answered[question])
	}
	if want := wordOf(c.token, c.owner); word != want {
		c.blame("the server got %q as an answer, which was %q", word, want)
	}
}

// Repeat notes that the server got an answer that it has. The gateway posts it again where a connection broke.
func (c *Call) Repeat(server, question string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(server, "gets the answer to "+question+" again")
	if !c.isDisturbed(Any) {
		c.blame("the answer to %s was posted again though nothing had gone wrong", question)
	}
}

// wordOf is what the owner of a call answers.
func wordOf(token, owner string) string { return "word-" + token + "-" + owner }

// Complete notes the result that the client has got; it is judged. content is that member of it, as it came.
func (c *Call) Complete(who string, content []byte) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(who, "the client gets the result "+string(content))
	switch {
	case !slices.ContainsFunc(c.made, func(b []byte) bool { return bytes.Equal(b, content) }):
		c.blame("its result is not what the server made: %s", content)
	case c.got != nil && !bytes.Equal(c.got, content):
		c.blame("its result was %s, and is %s now", c.got, content)
	}
	c.got = bytes.Clone(content)
}

// Acknowledge notes that a replica has made the call a task.
func (c *Call) Acknowledge(replica, id string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(replica, "makes the task "+id)
	c.j.tasks[id], c.acknowledged = c, true
}

// See notes the status of the task that a replica shows. A final status stays.
func (c *Call) See(replica, status string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(replica, "shows the task as "+status)
	if c.stopped && !isFinal(status) && !c.isDisturbed(Forgets) {
		c.blame("its cancellation was acknowledged, and %s shows it as %s", replica, status)
	}
	if c.ended != "" && status != c.ended && !c.isDisturbed(Forgets) {
		c.blame("the task was %s, and %s shows it as %s", c.ended, replica, status)
	}
	if isFinal(status) {
		c.ended = status
	}
}

// Cancel notes that a replica has acknowledged a cancellation.
func (c *Call) Cancel(replica string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note(replica, "cancels the task")
	c.stopped = true
}

func isFinal(status string) bool {
	return status == "completed" || status == "failed" || status == "cancelled"
}

// Fail notes that the task of the call has failed, or the call that blocks. It is lost with its replica once it has
// been run as often as it may be. Where it may be run again, it fails for no other reason but that of its server. A task
// whose job was asked for is never lost.
func (c *Call) Fail(why string) {
	harms := Any
	if c.most > 1 {
		harms = Breaks | Forgets
	}
	if strings.Contains(why, "the replica that ran this call was lost") {
		c.j.mu.Lock()
		if harms = Ends; c.countFaults(Ends) < c.most {
			harms = Forgets
		}
		c.j.mu.Unlock()
	}
	c.j.mu.Lock()
	if c.outlives() {
		harms = Forgets
	}
	c.j.mu.Unlock()
	c.End("failed: "+why, harms)
}

// End notes how the call ended for its client. A fault with one of the harms explains such an end.
func (c *Call) End(end string, harms Harm) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note("client", "ends: "+end)
	c.j.ends[c.kind+": "+shorten(end)]++
	if !c.isDisturbed(harms) {
		c.blame("it ended with %q though nothing had gone wrong that explains it", end)
	}
}

// Succeed notes that the client got what it wanted.
func (c *Call) Succeed(end string) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.note("client", "ends: "+end)
	c.j.ends[c.kind+": "+end]++
}

// digits make two ends of calls differ that are the same.
var digits = regexp.MustCompile(`k\d+x|[0-9a-f]{8,}[-0-9a-f]*|\d+`)

func shorten(end string) string {
	end = digits.ReplaceAllString(end, "N")
	return end[:min(len(end), 120)]
}

// tokens and taskIDs find the calls and the tasks that a message is about.
var (
	tokens  = regexp.MustCompile(`k\d+x`)
	taskIDs = regexp.MustCompile(`"taskId":"([^"]+)"`)
)

// Overhear sees to it that nobody hears of the calls of another, nor of their tasks.
func (j *Judge) Overhear(owner string, message []byte) {
	about := map[*Call]bool{}
	j.mu.Lock()
	for _, t := range tokens.FindAll(message, -1) {
		about[j.calls[string(t)]] = true
	}
	for _, m := range taskIDs.FindAllSubmatch(message, -1) {
		about[j.tasks[string(m[1])]] = true
	}
	j.mu.Unlock()
	for c := range about {
		if c != nil && c.owner != owner && !c.isShared() {
			c.Blame("%s heard of it: %.300s", owner, message)
		}
	}
}

func (c *Call) isShared() bool {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	return c.shared
}

// timeline tells a call's history, with that of the deployment meanwhile. j.mu is held.
func (j *Judge) timeline(c *Call) string {
	all := slices.Clone(c.events)
	for _, e := range j.world {
		if e.at.After(c.began.Add(-settle)) {
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "  %10s  %-12s %.600s\n", e.at.Sub(j.begun).Round(time.Millisecond), e.who, e.what)
	}
	return b.String()
}

// contentOf returns the content of a result, as it came.
func contentOf(result json.RawMessage) []byte {
	var r struct{ Content json.RawMessage }
	_ = json.Unmarshal(result, &r) // without content nothing fits
	return r.Content
}

// Ends says how many calls ended in which way.
func (j *Judge) Ends() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var lines []string
	for end, n := range j.ends {
		lines = append(lines, fmt.Sprintf("%6d  %s", n, end))
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[8:], b[8:]) })
	return strings.Join(lines, "\n")
}
