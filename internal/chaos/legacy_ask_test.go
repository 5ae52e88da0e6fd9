package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// brokenStream is an answer that broke off; with an event id it can be resumed.
type brokenStream struct {
	last string
	err  error
}

func (b *brokenStream) Error() string { return "the stream broke: " + b.err.Error() }
func (b *brokenStream) Unwrap() error { return b.err }

// stay makes a call and stays with it until it is answered, over as many streams as it
// takes, or until its session is gone. It hears all that the upstream says meanwhile.
func (l *legacy) stay(ctx context.Context, u *user, addr string, params map[string]any) (json.RawMessage, error) {
	n := &counter{judge: l.judge, heard: u.clients.asked, kind: "progress of calls", what: u.call.id, next: 1}
	params["_meta"] = map[string]any{"progressToken": u.call.id}
	session, _ := l.current()
	first, cut := ctx, func() {}
	if u.call.behaviour == reconnects {
		first, cut = context.WithTimeout(ctx, u.call.after)
	}
	result, _, err := l.send(first, addr, n, mcp.MethodToolsCall, params)
	cut()
	last := ""
	for ctx.Err() == nil {
		if broken, ok := errors.AsType[*brokenStream](err); ok && broken.last != "" {
			last = broken.last
		}
		if err == nil || last == "" {
			break
		}
		if _, ok := errors.AsType[*taskclient.Error](err); ok {
			break
		}
		wait(ctx, pollEvery)
		if now, _ := l.current(); now != session {
			return nil, errForgotten
		}
		u.clients.asked.add("a call's stream was picked up")
		result, err = l.resume(ctx, u.addr(), last, n)
	}
	if said := len(saying(u.call.id)); err == nil && u.call.tool.stream && n.next != said+1 && !n.excused {
		l.judge.blame("%s (%s, %s): its client heard %d texts of %d, and the result", u.call.id, u.call.tool.name, l.name(), n.next-1, said)
	}
	return result, err
}

// resume reads the rest of an answer.
func (l *legacy) resume(ctx context.Context, addr, last string, n *counter) (json.RawMessage, error) {
	resp, err := l.request(ctx, http.MethodGet, addr, last, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	return l.read(resp, n)
}

// overhear looks for questions in what comes on any stream, and sees to it that nobody
// gets what was not asked for.
func (l *legacy) overhear(data []byte) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Message string }
		Result map[string]json.RawMessage
	}
	if json.Unmarshal(data, &m) != nil {
		return
	}
	if m.Method == mcp.NotifyTaskPartial && l.viewer == nil || m.Result["partial-content"] != nil {
		l.judge.blame("a client that did not opt in (%s) got %.300s", l.name(), data)
	}
	if m.Method != mcp.MethodElicit || l.asked == nil {
		return
	}
	id, err := unquote(m.ID)
	_, key, ok := strings.Cut(id, "/")
	if err != nil || !ok {
		return // the user would be asked what nobody can answer: the judge misses the answer
	}
	l.asked(m.Params.Message, key, func(ctx context.Context, addr, value string, _ bool) error {
		return l.respond(ctx, addr, m.ID, value)
	})
}

// respond answers a request of the gateway's.
func (l *legacy) respond(ctx context.Context, addr string, id json.RawMessage, value string) error {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": elicitResult(value)})
	if err != nil {
		return err
	}
	resp, err := l.request(ctx, http.MethodPost, addr, "", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	return nil
}

// answer is never called for: the states of this dialect show no questions.
func (l *legacy) answer(context.Context, string, string, string, string, bool) error {
	return errors.New("a question has no answer here")
}

// keepStream keeps the session's GET stream, at one gateway after the other, until ctx
// ends. A forgetful client does not always know where it was. One that stays has its stream at one gateway for as long
// as that goes, and counts what is said outside of calls: two gateways hear of that for a moment where a stream moves.
func (s *session) keepStream(ctx context.Context, c *clients, i int) {
	random := rand.New(rand.NewPCG(uint64(i), 5))
	last := ""
	n := &counter{judge: c.judge, heard: c.asked, kind: "outside of calls", what: outside}
	for ctx.Err() == nil {
		if s.stays {
			err := s.listenOnce(ctx, c.fleet.nodes[i%len(c.fleet.nodes)].address(), &last, n)
			c.asked.add("GET stream that stays: " + brief(err))
			wait(ctx, pollEvery)
			continue
		}
		listening, cut := context.WithTimeout(ctx, 100*time.Millisecond+time.Duration(random.Float64()*float64(2*listenFor)))
		if s.forgets && random.IntN(4) == 0 {
			last = ""
		}
		err := s.listenOnce(listening, c.fleet.any(random), &last, nil)
		cut()
		if ctx.Err() == nil {
			c.asked.add("GET stream: " + brief(err))
		}
		wait(ctx, time.Duration(random.Float64()*float64(2*pollEvery)))
	}
}

// listenOnce reads one GET stream to its end.
func (l *legacy) listenOnce(ctx context.Context, addr string, last *string, n *counter) error {
	resp, err := l.request(ctx, http.MethodGet, addr, *last, nil)
	if errors.Is(err, errForgotten) {
		*last = ""
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &taskclient.Error{Code: int64(resp.StatusCode), Message: "no stream", Status: resp.StatusCode}
	}
	if l.viewer != nil {
		l.viewer.begin(*last == "")
	}
	events := eventstream.NewReader(resp.Body, 64<<20)
	for {
		e, err := events.Next()
		if err != nil {
			return err
		}
		if e.ID != "" {
			*last = e.ID
		}
		data := bytes.Clone(e.Data)
		n.hear(data)
		l.overhear(data)
		if l.viewer != nil {
			l.viewer.hear(data)
		}
	}
}
