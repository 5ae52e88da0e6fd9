package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// inputTimeout is how long a question waits for its answer. It is short, so that
// some of them run out of time.
const inputTimeout = 5 * time.Second

// How a user answers.
const (
	once     = "once"
	twice    = "twice"    // and something else afterwards
	races    = "races"    // and something else at the same time, at another gateway
	strange  = "strange"  // along with what nobody asked for, where the dialect can
	declines = "declines" // does not want to say
	silent   = "silent"   // leaves it to the deadline
)

// question is one question, as planned.
type question struct {
	at     int // after so many pieces of progress; those of one time are asked at once
	manner string
	delay  time.Duration // until the user answers
}

// planQuestions derives the questions of a call, if it has any.
func planQuestions(r *rand.Rand, c *call) []question {
	var list []question
	pieces := len(saying(c.id))
	for range r.IntN(6) - 2 { // half of the calls ask: one to three questions
		q := question{at: r.IntN(pieces + 1), delay: time.Duration(r.Float64() * float64(1200*time.Millisecond))}
		if len(list) > 0 && r.IntN(3) == 0 {
			q.at = list[len(list)-1].at
		}
		q.manner = pick(r, []string{once, once, once, once, twice, twice, races, races, strange, strange, declines, silent})
		list = append(list, q)
	}
	return list
}

// asks are the times of the questions, as the upstream is told.
func (c *call) asks() []int {
	at := []int{}
	for _, q := range c.questions {
		at = append(at, q.at)
	}
	return at
}

// questionName is how the n-th question of a call is called in its message, which is
// all that a user sees of it, and in its JSON-RPC id. A call that is begun again asks
// anew.
func questionName(call string, n, run int) string {
	name := call + "#" + strconv.Itoa(n)
	if run > 1 {
		name += "~" + strconv.Itoa(run)
	}
	return name
}

// questionOf finds what was planned for a question in its name.
func questionOf(name string) (p *call, n int, err error) {
	id, number, ok := strings.Cut(name, "#")
	last := strings.LastIndexByte(id, '-')
	if !ok || last < 0 {
		return nil, 0, fmt.Errorf("no question is called %.100q", name)
	}
	i, err := strconv.Atoi(id[last+1:])
	if err != nil {
		return nil, 0, err
	}
	number, _, _ = strings.Cut(number, "~")
	if n, err = strconv.Atoi(number); err != nil {
		return nil, 0, err
	}
	if p = plan(*seed, i); p.id != id || n >= len(p.questions) {
		return nil, 0, fmt.Errorf("nobody asked %.100q", name)
	}
	return p, n, nil
}

// values are what the user says to a question, in the order in which it is said.
func (q question) values(name string) []string {
	switch q.manner {
	case declines:
		return []string{declined}
	case silent:
		return nil
	case twice, races:
		return []string{"first of " + name, "second of " + name}
	}
	return []string{"first of " + name}
}

// What the upstream may hear in place of a value.
const (
	declined  = "(decline)"
	cancelled = "(cancel)"
)

// elicitResult is a value as the result of a question.
func elicitResult(value string) map[string]any {
	if value == declined {
		return map[string]any{"action": "decline"}
	}
	return map[string]any{"action": "accept", "content": map[string]any{"name": value}}
}

// valueOf reads what elicitResult wrote, or what a gateway says in its place.
func valueOf(result json.RawMessage) string {
	var r struct {
		Action  string
		Content struct{ Name string }
	}
	if err := json.Unmarshal(result, &r); err != nil || r.Action == "" {
		return fmt.Sprintf("(unreadable: %.100s)", result)
	}
	if r.Action == "accept" {
		return r.Content.Name
	}
	return "(" + r.Action + ")"
}

// saying is all that the upstream says in the course of a call: a function of its id.
func saying(id string) []string {
	list := make([]string, 3+len(text(id))%17)
	for i := range list {
		list[i] = fmt.Sprintf("%s says %d %s", id, i, strings.Repeat("y", (len(text(id))*i)%97))
	}
	return list
}
