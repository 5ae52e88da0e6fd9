package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
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
	}
	for i := range 4 {
		l := newLegacy()
		l.plain, l.asked = i == 3, c.question
		begin, done := context.WithTimeout(ctx, askTimeout)
		if err := l.begin(begin, c.fleet.nodes[i%len(c.fleet.nodes)].address()); err != nil {
			t.Fatal(err)
		}
		done()
		if i < 2 { // the others are asked on tasks/result, or on their calls' streams
			c.talk.busy.Go(func() { l.keepStream(ctx, c, uint64(i)) })
		}
		c.dialects = append(c.dialects, l)
	}
	t.Cleanup(stop)
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
			name, p.tool.name, p.behaviour, c.dialects[p.dialect%len(c.dialects)].name(), a.at.Format("15:04:05.000"), a.stream.read(0), a.stream.picked, seen != nil && len(seen.keys) > 0)
		c.talk.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	c.talk.mu.Lock()
	defer c.talk.mu.Unlock()
	for name, a := range u.asked {
		said := c.talk.asked[name]
		if said == nil {
			said = &conversation{}
		}
		c.talk.said.add(a.outcome(said))
		if err := a.check(said); err != nil {
			c.judge.blame("%s, asked at %s, closed at %s, stream picked up %d times: %v", name, a.at.Format("15:04:05.000"), a.closed.Format("15:04:05.000"), a.stream.picked, err)
		}
	}
	for n, result := range c.heard {
		if err := checkAnswers(plan(*seed, n), result, u.asked); err != nil {
			c.judge.blame("%v", err)
		}
	}
	if u.strays > 0 {
		c.judge.blame("%d answers reached the upstream to what it never asked", u.strays)
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

// outcome words what became of a question, for the summary.
func (a *asked) outcome(said *conversation) string {
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
// shows at its stream, which was picked up then.
func (a *asked) check(said *conversation) error {
	if len(said.keys) > 1 {
		return fmt.Errorf("asked under %d keys: %v", len(said.keys), said.keys)
	}
	byUser := 0
	for _, v := range a.answers {
		if v != cancelled {
			byUser++
		}
	}
	moved := a.stream.picked > 0
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
			if !moved && !said.gone && !s.heard.IsZero() && s.heard.Before(a.at.Add(inputTimeout)) {
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
		if !s.heard.IsZero() && s.heard.Before(said.last(first)) {
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
	if err := json.Unmarshal(result, &got); err != nil || len(got.Content) != 1+len(p.questions) {
		return fmt.Errorf("%s: the result is %.300s (%w)", p.id, result, err)
	}
	for n := range p.questions {
		a := asked[questionName(p.id, n)]
		if a == nil || len(a.answers) == 0 || a.answers[0] != got.Content[1+n].Text {
			return fmt.Errorf("%s: question %d was answered %+v, the result has %q", p.id, n, a, got.Content[1+n].Text)
		}
	}
	return nil
}

// again reads the partial results of a task that has ended from the first on and from
// the last, on any gateway, and holds them against what was said.
func (j *judge) again(ctx context.Context, c *clients, random *rand.Rand, r *record, l listener) {
	for _, after := range []bool{false, true} {
		from := 0
		if after {
			j.mu.Lock()
			from = max(r.total, 0)
			j.mu.Unlock()
		}
		err := errors.New("not tried")
		for err != nil {
			err = c.replay(ctx, c.fleet.any(random), r, l, from)
			if err != nil && !wait(ctx, pollEvery) {
				j.blame("%s: the partial results of task %s cannot be read: %v", r.call.id, r.id, err)
				return
			}
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := checkPartials(r); err != nil {
		j.blamed("%s (%s): task %s ended as %s: %v", r.call.id, r.call.tool.name, r.id, describe(*r.end), err)
	}
}
