package sim

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// How long a client waits that gives up, and the least time that its calls take.
const (
	shortPatience = 22 * time.Second
	longCall      = 25_000 // ms
)

// runGivingUp makes a call in a session, and makes it again whenever it has waited for too long. In the middle another
// principal may make the same call. After the answer the client makes the call once more: that is new work.
func (c *client) runGivingUp(p plan) {
	p.ms += longCall
	if !c.begin(`{}`) {
		c.call.End("no session", Any)
		return
	}
	defer c.end()
	var beside sync.WaitGroup
	defer beside.Wait()
	for attempt := range 12 {
		m, picked, err := c.attempt(p, shortPatience)
		switch {
		case err != nil:
			if attempt == 0 && c.chance(2) {
				c.call.Share()
				one := c.asOther()
				beside.Go(func() { one.besideAs(p, c.call) })
			}
			continue
		case m.Error != nil:
			c.call.End("failed: "+m.Error.Message, Any)
			return
		}
		delivered := contentOf(m.Result)
		c.call.Complete(c.replica, delivered)
		if attempt > 0 && !picked && !c.call.disturbed() {
			c.call.Blame("its client gave up %d times, and did not get the answer of the first call", attempt)
		}
		beside.Wait()
		c.call.AskAgain()
		if m, picked, err = c.attempt(p, 0); err == nil && m.Error == nil {
			// Under a fault the call was perhaps executed more than once, and the client has given up each of them.
			if again := contentOf(m.Result); picked && (bytes.Equal(again, delivered) || !c.call.disturbed()) {
				c.call.Blame("its answer was delivered, and the next call got it again: %s", m.Result)
			}
			c.call.Complete(c.replica, contentOf(m.Result))
		}
		c.call.Succeed("given up, and answered")
		return
	}
	c.call.End("given up for good", Any)
}

// attempt makes the call, and cancels it when its patience is over, as SDKs do. An error says that there is no answer.
// picked says that the answer is that of an earlier call.
func (c *client) attempt(p plan, patience time.Duration) (answer message, picked bool, err error) {
	c.serial++
	begun := time.Now()
	id, heard := strconv.Itoa(c.serial+100), false
	c.call.Note("client", "calls %s in the session %s", p.tool, c.session)
	status, _, err := c.send(request{
		verb: http.MethodPost, path: "/mcp", header: c.headers(), patience: patience,
		body: `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{` + c.arguments(p) + `}}`,
		hear: func(_ string, m message, _ []byte) bool {
			if string(m.ID) == id && m.Method == "" {
				answer, heard = m, true
			}
			return heard
		},
	})
	if heard {
		var r struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		_ = json.Unmarshal(answer.Result, &r) // an error has no result
		return answer, r.Meta["dev.taskgate/picked-up"] != nil, nil
	}
	c.call.Note(c.replica, "has no answer: %v, status %d; the client gives up", err, status)
	c.tell(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"context deadline exceeded"}}`)
	if time.Since(begun) < shortPatience {
		c.pause() // the way to the replica, or its store, is broken
	}
	return answer, false, errCut
}

// asOther is a client of the other principal that knows the call.
func (c *client) asOther() *client {
	other := *c
	owner := map[string]string{"ann": "bob", "bob": "ann"}[c.call.owner]
	other.call = &Call{j: c.call.j, token: c.call.token, owner: owner, kind: c.call.kind, began: c.call.began}
	other.session, other.rand = "", rand.New(rand.NewPCG(c.rand.Uint64(), 10))
	return &other
}

// besideAs makes the same call as another principal, which gets an answer of its own.
func (c *client) besideAs(p plan, first *Call) {
	if !c.begin(`{}`) {
		return
	}
	defer c.end()
	first.AskAgain()
	if m, picked, err := c.attempt(p, 0); err == nil && m.Error == nil && picked {
		first.Blame("%s picked it up: %s", c.call.owner, m.Result)
	}
}
