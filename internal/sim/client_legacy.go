package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// legacyCall is what a client of 2025-11-25 has heard of its call.
type legacyCall struct {
	id       string // of the request
	last     string // the id of the last event
	number   int    // in it
	notes    int    // the number of the last note
	progress float64
	answer   *message
	missing  bool            // it was told that messages may be missing
	asked    map[string]bool // the questions that it has answered
}

// begin opens a session at some replica, and reports whether it has one.
func (c *client) begin(capabilities string) bool {
	body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `,"clientInfo":{"name":"sim","version":"1"}}}`
	for range 30 {
		_, header, err := c.send(request{verb: http.MethodPost, path: "/mcp", body: body})
		if err == nil && header.Get("Mcp-Session-Id") != "" {
			c.session = header.Get("Mcp-Session-Id")
			c.tell(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			return true
		}
		c.pause()
	}
	return false
}

// headers are those of a request in the session.
func (c *client) headers() map[string]string {
	return map[string]string{"Mcp-Session-Id": c.session, "MCP-Protocol-Version": "2025-11-25"}
}

// tell sends what has no answer, and reports whether it was taken.
func (c *client) tell(body string) bool {
	for range 10 {
		if status, _, err := c.send(request{verb: http.MethodPost, path: "/mcp", body: body, header: c.headers()}); err == nil && status/100 == 2 {
			return true
		}
		c.pause()
	}
	return false
}

// end ends the session, and looks at some replica whether it has ended.
func (c *client) end() {
	for range 20 {
		status, _, err := c.send(request{verb: http.MethodDelete, path: "/mcp", header: c.headers()})
		if err == nil && status == http.StatusNotFound {
			return
		}
		if err == nil && status/100 == 2 {
			c.pause() // until each replica has heard of it
			if m, err := c.ask("", "ping", "", 0); err == nil && m.Error == nil && !c.call.disturbed() {
				c.call.Blame("its session %s was ended, and %s answers in it", c.session, c.replica)
			}
			return
		}
		c.pause()
	}
}

// runBlocking makes calls that block, in one session: one, and others beside it as the plan has it.
func (c *client) runBlocking(p plan) {
	if !c.begin(`{"elicitation":{"form":{}}}`) {
		c.call.End("no session", Any)
		return
	}
	defer c.end()
	var beside sync.WaitGroup
	for i := range p.beside {
		one := *c
		one.rand = rand.New(rand.NewPCG(c.rand.Uint64(), 8))
		token := fmt.Sprintf("%s%06dx", strings.TrimSuffix(c.call.token, "x"), i) // no other call has so many digits
		one.call = c.w.Judge.Begin(token, c.call.kind, c.call.owner, c.call.most)
		beside.Go(func() { one.block(p, strconv.Itoa(i+3)) })
	}
	c.block(p, "2")
	beside.Wait()
}

// block makes a call that blocks, and comes back by Last-Event-ID when its connection ends.
func (c *client) block(p plan, id string) {
	heard := &legacyCall{id: id, asked: map[string]bool{}}
	hear := func(id string, m message, text []byte) bool { return c.hearLegacy(heard, id, m, text) }
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{` + c.arguments(p) + `,"_meta":{"progressToken":` + id + `}}}`
	c.call.Note("client", "calls %s in the session %s", p.tool, c.session)
	status, _, err := c.send(request{verb: http.MethodPost, path: "/mcp", body: body, header: c.headers(), hear: hear, slow: p.slow})
	for range 100 {
		switch {
		case heard.answer != nil:
			c.judgeBlocking(p, heard)
			return
		case err == nil && status != http.StatusOK:
			c.call.End("answered with status "+strconv.Itoa(status), Any)
			return
		case heard.last == "":
			c.call.End("cut before the first event id", Any)
			return
		}
		c.call.Note(c.replica, "%v; the client has heard up to %s", err, heard.last)
		c.pause()
		h := c.headers()
		h["Last-Event-ID"], h["Accept"] = heard.last, "text/event-stream"
		status, _, err = c.send(request{verb: http.MethodGet, path: "/mcp", header: h, hear: hear, slow: p.slow})
		if err == nil && heard.answer == nil && status != http.StatusNotFound {
			err = fmt.Errorf("status %d", status)
			status = http.StatusOK // it tries again
		}
	}
	c.call.Blame("its stream has no answer after a hundred attempts")
}

// hearLegacy takes a message of the stream of a call, and reports whether it is the answer.
func (c *client) hearLegacy(h *legacyCall, id string, m message, text []byte) bool {
	c.count(h, id, text)
	switch m.Method {
	case "notifications/message":
		c.hearNote(h, m, text)
	case "notifications/progress":
		var p struct{ Progress float64 }
		_ = json.Unmarshal(m.Params, &p)
		if p.Progress <= h.progress {
			c.call.Blame("%s sent the progress %v after %v", c.replica, p.Progress, h.progress)
		}
		h.progress = p.Progress
	case "elicitation/create":
		c.answerOnStream(h, m)
	case "":
		if string(m.ID) == h.id {
			h.answer = &m
			return true
		}
	}
	return false
}

// count sees to it that the numbers of the events of a stream rise.
func (c *client) count(h *legacyCall, id string, text []byte) {
	if id == "" {
		return
	}
	_, n, _ := strings.Cut(id, ".")
	number, _ := strconv.Atoi(n)
	if h.last != "" && (number < h.number || number == h.number && len(text) > 0) { // a stream that is resumed begins with it
		c.call.Blame("%s sent the event %s after %s", c.replica, id, h.last)
	}
	h.last, h.number = id, number
}

// hearNote takes one of the numbered messages of the server.
func (c *client) hearNote(h *legacyCall, m message, text []byte) {
	var p struct {
		Data struct {
			Note int
			Of   string
		}
	}
	_ = json.Unmarshal(m.Params, &p)
	switch {
	case p.Data.Of == "":
		c.call.Note(c.replica, "says %s", text)
		h.missing = true
	case p.Data.Of != c.call.token:
		c.call.Blame("%s sent what another call said: %s", c.replica, text)
	case p.Data.Note <= h.notes:
		c.call.Blame("%s sent the note %d after %d", c.replica, p.Data.Note, h.notes)
	case p.Data.Note > h.notes+1 && !h.missing:
		c.call.Blame("%s sent the note %d after %d, and did not say that any is missing", c.replica, p.Data.Note, h.notes)
	}
	if p.Data.Of != "" {
		h.notes, h.missing = p.Data.Note, false
	}
}

// answerOnStream answers a question at some replica.
func (c *client) answerOnStream(h *legacyCall, m message) {
	key := string(m.ID)
	if h.asked[key] {
		c.call.Note(c.replica, "asks %s again", key)
		return
	}
	h.asked[key] = true
	c.call.Note(c.replica, "asks %s", key)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"word":"%s"}}}`, key, wordOf(c.call.token, c.call.owner))
	go func() { // the stream goes on meanwhile
		one := *c
		one.rand = rand.New(rand.NewPCG(uint64(h.number), 9))
		one.pause()
		one.call.Note(one.replica, "takes the answer: %v", one.tell(body))
	}()
}

func (c *client) judgeBlocking(p plan, h *legacyCall) {
	a := h.answer
	if a.Error != nil {
		c.call.Fail(a.Error.Message)
		return
	}
	c.call.Complete(c.replica, contentOf(a.Result))
	if p.tool == "talk" && h.notes < p.notes && !h.missing && !c.call.disturbed() {
		c.call.Blame("%d notes were made, and %d came", p.notes, h.notes)
	}
	c.call.Succeed("completed")
}

// legacyTask is what a client of 2025-11-25 has to know of a task.
type legacyTask struct {
	Task           struct{ TaskID, Status string }
	TaskID, Status string
	StatusMessage  string
}

// ask sends a request in the session, and returns its answer.
func (c *client) ask(replica, method, params string, patience time.Duration) (answer message, err error) {
	c.serial++
	id, heard := strconv.Itoa(c.serial+10), false
	r := request{verb: http.MethodPost, path: "/mcp", header: c.headers(), patience: patience, body: `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `}}`}
	r.hear = func(_ string, m message, _ []byte) bool {
		if string(m.ID) == id && m.Method == "" {
			answer, heard = m, true
		}
		return heard
	}
	var status int
	if replica == "" {
		status, _, err = c.send(r)
	} else {
		status, _, err = c.sendTo(replica, r)
	}
	if err == nil && !heard {
		err = fmt.Errorf("status %d without an answer", status)
	}
	return answer, err
}

// runLegacyTask makes a call as a task of 2025-11-25, polls it, and fetches its result.
func (c *client) runLegacyTask(p plan) {
	capabilities := `{"tasks":{"list":{},"cancel":{}}}`
	if p.counts {
		capabilities = `{"tasks":{"list":{},"cancel":{},"streaming":{"partial":{}}}}`
	}
	if !c.begin(capabilities) {
		c.call.End("no session", Any)
		return
	}
	defer c.end()
	m, err := c.ask("", "tools/call", c.arguments(p)+`,"task":{"ttl":300000}`, 0)
	var t legacyTask
	_ = json.Unmarshal(m.Result, &t)
	switch {
	case err != nil:
		c.call.End("cut", Any)
		return
	case m.Error != nil:
		c.call.End("refused: "+m.Error.Message, Any)
		return
	case t.Task.TaskID == "":
		c.call.Blame("it is answered without a task: %s", m.Result)
		return
	}
	id := t.Task.TaskID
	c.call.Acknowledge(c.replica, id)
	if p.counts || c.chance(2) {
		defer c.listen(p, id)()
	}
	c.followTask(p, task{
		id: id,
		ask: func(replica, method string, patience time.Duration) (message, error) {
			return c.ask(replica, method, `"taskId":"`+id+`"`, patience)
		},
		read: func(m message) shown {
			var t legacyTask
			_ = json.Unmarshal(m.Result, &t) // without a status nothing fits
			return shown{status: t.Status, why: t.StatusMessage}
		},
		peek: func() {},
		wait: func() {
			if c.chance(6) {
				c.fetch(id)
			}
		},
		again: func(s shown) {
			if s.status == "completed" {
				c.fetch(id)
			}
			if c.chance(4) {
				_, _ = c.ask("", "tasks/list", "", 0) // Overhear judges it
			}
		},
	})
}

// fetch waits for the result of a task for a while, and judges it.
func (c *client) fetch(id string) {
	m, err := c.ask("", "tasks/result", `"taskId":"`+id+`"`, time.Duration(1+c.rand.IntN(10))*time.Second)
	if err == nil && m.Error == nil {
		c.call.Complete(c.replica, contentOf(m.Result))
	}
}
