package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// A checking client of SEP-1905: it lists "streaming" in its calls, and takes the blocks
// of results by every carrier that there is, one after the other as it comes: the first
// answer, more responses on the call's own stream, that stream resumed at any gateway by GET with
// Last-Event-ID (which refers it to the number, where the stream has lost its gateway),
// tasks/result with lastSeqNr, and tasks/result with stream:{}, which can
// be resumed too. seqNr goes on by one over all of them (protocol.md 6.1).

// responses are the several responses to one request.
type responses struct {
	l      *legacy
	resp   *http.Response
	close  func()
	events *eventstream.Reader // nil for one in JSON
	first  json.RawMessage     // one that has been read already; nil for none
	last   string              // the id of the last event
	some   bool                // an event with a message came
}

// responses opens what a request is answered with, until that is closed or ctx ends.
func (l *legacy) responses(ctx context.Context, method, addr, last string, body []byte) (*responses, error) {
	ctx, end := context.WithCancel(ctx)
	resp, err := l.request(ctx, method, addr, last, body)
	if err != nil {
		end()
		return nil, err
	}
	r := &responses{l: l, resp: resp, last: last, close: func() { end(); resp.Body.Close() }}
	switch {
	case resp.Header.Get("Content-Type") == mcp.TypeSSE:
		r.events = eventstream.NewReader(resp.Body, 64<<20, nil)
	case method == http.MethodGet:
		r.close()
		return nil, fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	return r, nil
}

// next is the next response; what else comes on the stream is seen to.
func (r *responses) next() (json.RawMessage, error) {
	if first := r.first; first != nil {
		r.first, r.some = nil, true
		return first, nil
	}
	if r.events == nil {
		return r.l.read(r.resp)
	}
	for {
		e, err := r.events.Next()
		if err != nil {
			return nil, err
		}
		if e.ID != "" {
			r.last = e.ID
		}
		if len(bytes.TrimSpace(e.Data)) == 0 {
			continue
		}
		r.some = true
		data := bytes.Clone(e.Data)
		r.l.overhear(data)
		if result, final, err := legacyMessage(r.resp, data); err != nil || final {
			return result, err
		}
	}
}

// stream makes a call whose result is streamed, and returns once it has its task, or the
// result, if that is there at once.
func (l *legacy) stream(ctx context.Context, u *user, addr string, params map[string]any) (json.RawMessage, *state, error) {
	modes := []string{"streaming", "immediate"}
	params["task"].(map[string]any)["responseModes"] = modes[:1+u.call.random.IntN(2)]
	body, err := l.message(mcp.MethodToolsCall, params)
	if err != nil {
		return nil, nil, err
	}
	// The stream is the call's until there is a task, and the task's from then on.
	within, end := context.WithCancel(context.Background())
	detach := context.AfterFunc(ctx, end)
	r, err := l.responses(within, http.MethodPost, addr, "", body)
	var result json.RawMessage
	for err == nil {
		if result, err = r.next(); err == nil || r.last == "" || isRefusal(err) || ctx.Err() != nil {
			break
		}
		last := r.last
		r.close()
		for err != nil && wait(ctx, pollEvery) {
			r, err = l.responses(within, http.MethodGet, u.addr(), last, nil)
		}
	}
	if told := toldRest.FindStringSubmatch(fmt.Sprint(err)); told != nil {
		end() // the task was made, and its replica is gone: the blocks are fetched by number
		s, err := l.get(ctx, u.addr(), told[1])
		for err != nil && !isRefusal(err) && wait(ctx, pollEvery) { // the call was sent: it is not made again
			s, err = l.get(ctx, u.addr(), told[1])
		}
		return nil, &s, err
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	var created struct{ Task *legacyTask }
	err = json.Unmarshal(result, &created)
	if err != nil || created.Task == nil {
		end()
		return result, nil, err
	}
	if !detach() {
		return nil, nil, context.Cause(ctx)
	}
	s := created.Task.state()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pushes[s.id] = &responses{l: l, resp: r.resp, events: r.events, first: result, last: r.last, close: func() { end(); r.close() }}
	return nil, &s, nil
}

// toldRest is the error with which a stream of segments ends whose replica is gone.
var toldRest = regexp.MustCompile(`the stream of the task (\S+) is lost; tasks/result has the rest, .* as lastSeqNr`)

// isRefusal reports whether a gateway has answered with an error.
func isRefusal(err error) bool {
	_, ok := errors.AsType[*taskclient.Error](err)
	return ok
}

// puller is one reader of the segments of one task.
type puller struct {
	l      *legacy
	random *rand.Rand
	push   *responses // the stream of the call, as long as it lasts; nil for none
	last   string     // where a stream that broke can be resumed; "" for nowhere
}

// puller begins with the stream of the call, if nobody reads that.
func (l *legacy) puller(id string) *puller {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &puller{l: l, push: l.pushes[id], random: rand.New(rand.NewPCG(uint64(l.serial.Add(1)), 6))}
	delete(l.pushes, id)
	return p
}

// listen takes segments by one of the carriers, until it ends.
func (p *puller) listen(ctx context.Context, addr, id string, from int, v *view) error {
	v.over = false
	r, carrier, err := p.open(ctx, addr, id, from)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, r.close)()
	defer r.close()
	before := v.next
	for !v.ended && err == nil {
		var result json.RawMessage
		if result, err = r.next(); err == nil {
			p.segment(id, result, v)
		}
		if carrier == "by number" {
			break
		}
	}
	for range v.next - before {
		p.l.carriers.add("segments " + carrier)
	}
	p.last = ""
	if toldRest.MatchString(fmt.Sprint(err)) {
		p.l.carriers.add("segments to be fetched after a stream was lost")
	}
	if !v.ended && !isRefusal(err) && (r.some || ctx.Err() != nil) {
		p.last = r.last
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// open takes up what there is, or asks for more in one way or the other.
func (p *puller) open(ctx context.Context, addr, id string, from int) (r *responses, carrier string, err error) {
	if r = p.push; r != nil {
		p.push = nil
		return r, "on the call's stream", nil
	}
	if p.last != "" && p.random.IntN(4) > 0 {
		last := p.last
		if p.random.IntN(4) == 0 {
			p.last = "" // if it cannot be had, another way is tried
		}
		r, err = p.l.responses(ctx, http.MethodGet, addr, last, nil)
		return r, "on a stream that was resumed", err
	}
	params := map[string]any{"taskId": id}
	carrier = "by number"
	if from > 0 {
		params["lastSeqNr"] = from
	}
	if from == 0 || p.random.IntN(3) == 0 {
		params["stream"] = map[string]any{}
		carrier = "on a stream of tasks/result"
	}
	body, err := p.l.message(mcp.MethodTasksResult, params)
	if err != nil {
		return nil, "", err
	}
	r, err = p.l.responses(ctx, http.MethodPost, addr, "", body)
	return r, carrier, err
}

// segment takes one response.
func (p *puller) segment(id string, result json.RawMessage, v *view) {
	var s struct {
		Task       json.RawMessage
		Blocks     []json.RawMessage `json:"partial-content"`
		Content    json.RawMessage   // why it failed, where there was never a block
		IsComplete *bool
		IsError    *bool
		Meta       map[string]json.RawMessage `json:"_meta"`
	}
	err := json.Unmarshal(result, &s)
	if err == nil && s.Task != nil && s.IsComplete == nil {
		return // the handle alone
	}
	reason := s.Blocks == nil && s.Content != nil && s.IsError != nil && *s.IsError
	if err != nil || s.Blocks == nil && !reason || s.IsComplete == nil || s.IsError == nil ||
		s.Task == nil && !strings.Contains(string(s.Meta[mcp.MetaRelatedTask]), id) {
		v.judge.blame("task %s: strange segments: %.300s", id, result)
		return
	}
	for _, block := range s.Blocks {
		no, _ := jsonrpc.Get(block, "seqNr")
		n, err := strconv.Atoi(string(no))
		plain, err2 := jsonrpc.Delete(block, "seqNr")
		if err != nil || err2 != nil {
			v.judge.blame("task %s: a strange segment: %.300s", id, block)
			return
		}
		v.piece(n-1, plain)
	}
	if *s.IsComplete {
		v.failing(*s.IsError)
		v.end()
	} else if *s.IsError {
		v.judge.blame("task %s: an error, and not the end: %.300s", id, result)
	}
}

// failing takes what the last segment says of the task's end.
func (v *view) failing(failed bool) {
	j := v.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	if v.total >= 0 && v.failed != failed {
		j.blamed("task %s: the last segment says that it failed: %t, and said: %t", v.id, failed, v.failed)
	}
	v.failed = failed
}
