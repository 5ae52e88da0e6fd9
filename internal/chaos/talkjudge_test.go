package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// converse has the upstream ask, and the clients be asked and take partial results, in
// every way there is. Their streams end with the test.
func (c *clients) converse(t *testing.T) {
	t.Helper()
	c.talk = newTalk()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		c.talk.busy.Wait()
	})
	c.dialects = []dialect{
		newModern(c.judge, true, true, true), newModern(c.judge, true, true, true),
		newModern(c.judge, true, false, true), newModern(c.judge, false, false, true),
		newRounds(c.judge, true, true), newRounds(c.judge, false, false),
	}
	for i, s := range c.sessions() {
		s.asked = c.question
		begin, done := context.WithTimeout(ctx, askTimeout)
		if err := s.begin(begin, c.fleet.nodes[i%len(c.fleet.nodes)].address()); err != nil {
			t.Fatal(err)
		}
		done()
		if s.stands {
			c.talk.busy.Go(func() { s.keepStream(ctx, c, i) })
		}
		c.dialects = append(c.dialects, s.legacy)
	}
	t.Cleanup(stop)
}

// session is one of a client of 2025-11-25.
type session struct {
	*legacy
	stands  bool // has a GET stream; without, it is asked on tasks/result or on its calls' streams
	forgets bool // and does not always know where it was on it
	stays   bool // or never leaves it
}

// sessions are those of a run.
func (c *clients) sessions() []session {
	list := make([]session, 10)
	for i := range list {
		list[i].legacy = newLegacy(c.judge)
	}
	for i := range 3 {
		list[i].stands, list[i].forgets = true, i > 0
	}
	list[0].viewer, list[1].viewer = newViewer(c.judge), newViewer(c.judge)
	list[4].plain = true
	list[5].stands, list[5].stays = true, true
	for i := 7; i < len(list); i++ {
		list[i].path = pathRounds
	}
	list[7].stands, list[9].plain = true, true
	return list
}

// inGoodTime is how much later than its time a question may be over when nothing goes
// wrong any more.
const inGoodTime = 20 * time.Second

// judgeTalk holds the questions against what is promised of them (design.md 0.18).
func (c *clients) judgeTalk(t *testing.T, u *upstream) {
	ctx, stop := context.WithTimeout(t.Context(), inputTimeout+inGoodTime)
	defer stop()
	for len(c.stillAsked(u)) > 0 && wait(ctx, pollEvery/4) {
	}
	for name, a := range c.stillAsked(u) {
		p, _, _ := questionOf(name)
		c.talk.mu.Lock()
		seen := c.talk.asked[name]
		c.judge.blame("%s (%s, %s, %s): asked at %s, and neither answered nor over; %d read the stream, which was picked up %d times; the client was asked: %v",
			name, p.tool.name, p.behaviour, c.dialectOf(p).name(), a.at.Format("15:04:05.000"), a.stream.read(0), a.stream.picked, seen != nil && len(seen.keys) > 0)
		c.talk.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rounds.mu.Lock()
	defer u.rounds.mu.Unlock()
	c.talk.mu.Lock()
	defer c.talk.mu.Unlock()
	asked := maps.Clone(u.asked)
	maps.Copy(asked, u.rounds.asked)
	c.judgeAnswers(asked)
	if n := u.strays + u.rounds.strays; n > 0 {
		c.judge.blame("%d answers reached an upstream to what it never asked", n)
	}
}

// judgeAnswers holds what the upstreams heard against what users said, and against the
// results. All locks are held.
func (c *clients) judgeAnswers(asked map[string]*asked) {
	for name, a := range asked {
		said := c.talk.asked[name]
		if said == nil {
			said = &conversation{}
		}
		c.talk.said.add(a.outcome(said))
		p, _, _ := questionOf(name)
		if said.relayed && p.tool.retry { // the retry has become a task, which may be run again
			a.answers = slices.Compact(a.answers)
		}
		if err := a.check(said, c.fleet.patience(), c.judge.forgetsAnswer); err != nil {
			c.judge.blame("%s (%s, %s, %s), asked at %s, closed at %s, moved: %t: %v", name, p.tool.name, p.behaviour, c.dialectOf(p).name(),
				a.at.Format("15:04:05.000"), a.closed.Format("15:04:05.000"), a.moved(), err)
		}
	}
	for n, result := range c.heard {
		if err := checkAnswers(c.plan(*seed, n), result, asked); err != nil {
			c.judge.blame("%v", err)
		}
	}
}

// stillAsked are the open questions for which somebody is responsible: a gateway still
// reads the call's stream, or a client has been asked, so that there is a record, which
// has not ended. A call whose gateway died before that is in nobody's hands, and so is
// one that was ended for its client while its gateway died: nobody can tell the
// upstream.
func (c *clients) stillAsked(u *upstream) map[string]*asked {
	over := map[string]bool{}
	for _, r := range c.judge.records() {
		if c.judge.ended(r) != nil {
			over[r.call.id] = true
		}
	}
	list := u.open()
	c.talk.mu.Lock()
	defer c.talk.mu.Unlock()
	for name, a := range list {
		id, _, _ := strings.Cut(name, "#")
		if a.stream.read(0) == 0 && (!c.talk.shown(name) || over[id] || c.talk.asked[name].gone) {
			delete(list, name)
		}
	}
	return list
}

// moved reports whether the call has changed hands, which shows at its stream: it was
// picked up then. At the modern upstream a call is in nobody's hands between two rounds.
func (a *asked) moved() bool { return a.stream != nil && a.stream.picked > 0 }

// outcome words what became of a question, for the summary.
func (a *asked) outcome(said *conversation) string {
	if a.stream == nil {
		return a.outcomeOfRound(said)
	}
	switch {
	case a.closed.IsZero():
		return "questions in nobody's hands (their gateway was gone, and their call unrecorded or over)"
	case len(a.answers) == 0:
		return "questions of calls that were ended"
	case a.answers[0] == cancelled && len(said.keys) == 0:
		return "questions that nobody was shown, answered by the gateway"
	case a.answers[0] == cancelled:
		return "questions answered by the gateway: out of time, or lost with a replica"
	case a.answers[0] == declined:
		return "questions answered by the user: declined"
	}
	return "questions answered by the user"
}

// check holds one question against the promises. Whether its call has changed hands
// shows at its stream, which was picked up then. forgets says that the store may have lost
// what it acknowledged at a time.
func (a *asked) check(said *conversation, patience time.Duration, forgets func(time.Time) bool) error {
	if len(said.keys) > 1 {
		return fmt.Errorf("asked under %d keys: %v", len(said.keys), said.keys)
	}
	byUser := 0
	for _, v := range a.answers {
		if v != cancelled {
			byUser++
		}
	}
	moved := a.moved()
	if a.stream == nil {
		if err := a.checkRound(said, patience); err != nil {
			return err
		}
	}
	switch {
	case byUser > 1:
		return fmt.Errorf("%d answers reached the upstream: %q", byUser, a.answers)
	case len(a.answers) > 1 && !moved:
		return fmt.Errorf("the upstream was answered %d times: %q", len(a.answers), a.answers)
	case len(a.answers) == 0:
		return nil
	}
	first := a.answers[0]
	if first == cancelled {
		for _, s := range said.said {
			// That a round has changed hands shows nowhere. Who goes on with it counts its
			// time from when the record came, which is not quite when it was read.
			late := a.stream == nil && s.heard.After(a.closed)
			if !moved && !late && !said.gone && !s.heard.IsZero() && s.heard.Before(a.at.Add(inputTimeout)) {
				return fmt.Errorf("the answer %q was acknowledged at %s, and the upstream was told %q", s.value, s.heard.Format("15:04:05.000"), first)
			}
		}
		return nil
	}
	for _, s := range said.said {
		if s.value == first {
			return nil
		}
		// Whatever was said after this one had been heard is too late.
		if !s.heard.IsZero() && s.heard.Before(said.last(first)) && !forgets(s.heard) {
			return fmt.Errorf("the answer is %q, but %q was acknowledged before that was given", first, s.value)
		}
	}
	return fmt.Errorf("nobody gave the answer %q", first)
}

// last is when a value was first given.
func (c *conversation) last(value string) time.Time {
	for _, s := range c.said {
		if s.value == value {
			return s.at
		}
	}
	return time.Time{}
}

// checkAnswers holds a result against what the upstream had heard.
func checkAnswers(p *call, result json.RawMessage, asked map[string]*asked) error {
	var got struct{ Content []struct{ Text string } }
	if err := json.Unmarshal(result, &got); err != nil || len(got.Content) < 1+len(p.questions) {
		return fmt.Errorf("%s: the result is %.300s (%w)", p.id, result, err)
	}
	got.Content = got.Content[len(got.Content)-len(p.questions):]
	for n := range p.questions {
		heard := false
		for run := range p.tool.allowed() { // the result is of one of its runs
			a := asked[questionName(p.id, n, run+1)]
			heard = heard || a != nil && len(a.answers) > 0 && a.answers[0] == got.Content[n].Text
		}
		if !heard {
			return fmt.Errorf("%s: the result has %q for the answer to question %d", p.id, got.Content[n].Text, n)
		}
	}
	return nil
}
