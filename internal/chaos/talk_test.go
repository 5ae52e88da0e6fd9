package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"taskgate/internal/taskclient"
)

// talk is what users were asked, and what they said.
type talk struct {
	mu    sync.Mutex
	asked map[string]*conversation // by the question's name
	busy  sync.WaitGroup           // users who are about to answer
	said  *tally
}

// conversation is what there was about one question.
type conversation struct {
	keys map[string]bool // under which the gateways asked it
	said []*utterance    // in order
	gone bool            // its user has left the call
	// relayed says that the question and its answer went through the gateways as they
	// were, to a client that comes back itself.
	relayed bool
	since   time.Time // when it came to the user first
}

// utterance is one answer of a user.
type utterance struct {
	name  string // of the question
	value string
	at    time.Time
	heard time.Time // when a gateway had acknowledged it; zero for never
}

func newTalk() *talk { return &talk{asked: map[string]*conversation{}, said: newTally()} }

// of is the conversation about a question. t.mu is held.
func (t *talk) of(name string) *conversation {
	if t.asked[name] == nil {
		t.asked[name] = &conversation{keys: map[string]bool{}}
	}
	return t.asked[name]
}

// ask notes that a question came under a key, and reports whether that was news.
func (t *talk) ask(name, key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of(name)
	first := len(c.keys) == 0
	if first {
		c.since = time.Now()
	}
	c.keys[key] = true
	return first
}

// open is how long ago a question, which is open still, came to its user first.
func (t *talk) open(name string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if since := t.of(name).since; !since.IsZero() {
		return time.Since(since)
	}
	return 0
}

// relay notes that a question was relayed.
func (t *talk) relay(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(name).relayed = true
}

// say notes that an answer is about to be given.
func (t *talk) say(name, value string) *utterance {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := &utterance{name: name, value: value, at: time.Now()}
	c := t.of(name)
	c.said = append(c.said, u)
	t.said.add("answers given")
	return u
}

// hear notes that it was acknowledged.
func (t *talk) hear(u *utterance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u.heard = time.Now()
}

// leave notes that the user has left a call: a gateway may answer for it.
func (t *talk) leave(p *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := range p.questions {
		for run := range p.tool.allowed() {
			t.of(questionName(p.id, n, run+1)).gone = true
		}
	}
}

// shown reports whether a question has come to its user.
func (t *talk) shown(name string) bool {
	c := t.asked[name]
	return c != nil && len(c.keys) > 0
}

// giving hands in an answer at a gateway; strange says: with some that nobody asked
// for.
type giving func(ctx context.Context, addr, value string, strange bool) error

// question has a user asked, who answers in the way that the plan says. A question
// may be shown any number of times, and is answered once.
func (c *clients) question(name, key string, give giving) {
	p, n, err := questionOf(name)
	if err != nil {
		c.judge.blame("a client was asked: %v", err)
		return
	}
	if c.talk.ask(name, key) {
		c.talk.busy.Go(func() { c.answer(name, p, n, give) })
	}
}

// answer is the user.
func (c *clients) answer(name string, p *call, n int, give giving) {
	ctx, stop := context.WithTimeout(context.Background(), attention)
	defer stop()
	q := p.questions[n]
	random := rand.New(rand.NewPCG(uint64(p.n), uint64(n)))
	wait(ctx, q.delay)
	var all sync.WaitGroup
	for _, value := range q.values(name) {
		first := random.Uint64()
		one := func() { c.insist(ctx, first, name, value, q.manner == strange, give) }
		if q.manner == races {
			all.Go(one)
		} else {
			one()
		}
	}
	all.Wait()
}

// insist gives one answer until a gateway has acknowledged it.
func (c *clients) insist(ctx context.Context, seed uint64, name, value string, strange bool, give giving) {
	random := rand.New(rand.NewPCG(seed, 4))
	u := c.talk.say(name, value)
	for ctx.Err() == nil {
		asking, stop := context.WithTimeout(ctx, askTimeout)
		err := give(asking, c.fleet.any(random), value, strange)
		stop()
		var refused *taskclient.Error
		if err == nil {
			c.talk.hear(u)
			c.asked.add("answer: acknowledged")
			return
		}
		c.asked.add("answer: " + brief(err))
		if errors.As(err, &refused) && refused.Code == codeInvalid {
			c.judge.blame("%s: the answer was refused: %v", name, err)
			return
		}
		wait(ctx, pollEvery)
	}
}

// user is the one who makes a call and may be asked in its course.
type user struct {
	clients *clients
	call    *call
}

// addr is any gateway.
func (u *user) addr() string { return u.clients.fleet.any(u.call.random) }

// errSilent: the user does not answer, and does not come back.
var errSilent = errors.New("the user did not come back")

// retry is one way of coming back to a parked call: the answers by key, and what they
// say.
type retry struct {
	responses map[string]any
	said      []*utterance
}

// comeBack is asked in a result (protocol.md 2.7), and returns with what the call is
// to be made again: more than once if the user is not sure about it, and if it is a
// gateway that asks, which sees to it that one of them counts.
func (u *user) comeBack(ctx context.Context, asked map[string]string) ([]retry, error) {
	tries, patience := 1, time.Duration(0)
	for key, name := range asked {
		p, n, err := questionOf(name)
		if err != nil || p.id != u.call.id {
			return nil, fmt.Errorf("%s was asked %q: %w", u.call.id, name, err)
		}
		p = u.call // as it was made
		u.clients.talk.ask(name, key)
		if u.call.rounds {
			u.clients.talk.relay(name)
			u.call.relayed = max(u.call.relayed, p.questions[n].at)
		}
		switch q := p.questions[n]; {
		case q.manner == silent && p.n%2 == 0:
			return nil, errSilent
		case q.manner == silent:
			patience = inputTimeout + time.Second
		case q.manner == races && !u.call.rounds:
			tries = 2
			fallthrough
		default:
			patience = max(patience, q.delay)
		}
	}
	wait(ctx, patience)
	list := make([]retry, tries)
	for i := range list {
		list[i].responses = map[string]any{}
		for key, name := range asked {
			_, n, _ := questionOf(name)
			q := u.call.questions[n]
			values := append(q.values(name), "late answer to "+name)
			value := values[min(i, len(values)-1)]
			list[i].responses[key] = elicitResult(value)
			if q.manner == strange {
				list[i].responses["nobody-asked"] = elicitResult("nonsense")
			}
			list[i].said = append(list[i].said, u.clients.talk.say(name, value))
		}
	}
	return list, nil
}
