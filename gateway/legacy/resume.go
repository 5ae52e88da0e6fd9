package legacy

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// askAgain is the time between two questions to the replica of a resumed stream whether it still writes it.
const askAgain = 30 * time.Second

// serveResume goes on with the answer to a request whose stream broke (X8). It sends what the log has after the
// client's last event, at any replica, and then what is added until the answer is complete. If the answer only
// waits for a task, this replica answers from now on. If there is nothing to go on with, nothing is sent, and heard is
// true: the client has all of the stream, or the session has none of this name, or none any more. A stranger learns
// nothing from that.
func (h *Handler) serveResume(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, stream string, no int64) (heard bool) {
	ctx, done, err := h.Streams.Open(r.Context(), p.Share())
	defer done()
	if err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, err)
		return false
	}
	q, state, note, err := h.waitOf(ctx, s, p, stream)
	if q != nil {
		done() // it is a request like others from here on
		h.serveWait(w, r, q, stream, note, no)
		return false
	}
	if err == nil && (state == "" || state == "ended" && s.isHeard(ctx, stream, no)) {
		return true
	}
	h.Shim.ResumeStream(ctx, shim.Repeat{Client: func() string { return h.NameRepeater(repeaterOf(s, s.currentState(), s.principalOf(p))) }, Stream: stream})
	out := eventstream.NewWriter(w, h.Global.KeepAlive)
	defer out.Close()
	if out.Comment("open") != nil {
		return false
	}
	t := writer{s: s, name: stream, no: no, out: out, state: logged, replay: newReplay(h.Endpoint, s, p)}
	var asked time.Time
	err = t.writeUntilEnd(ctx, resumeCheck, func(state string, note []byte) bool {
		switch {
		case state == "lost":
			// The answers are in the log then; otherwise the next round tries again.
			_, _ = s.table.store.Bury(ctx, s.id, stream, lastWords(replicaLost))
		case state == "open" && time.Since(asked) >= askAgain:
			asked = time.Now()
			s.askKeeper(ctx, stream, note)
		}
		return state != "open" && state != "lost"
	})
	if err != nil {
		h.Log.DebugContext(ctx, "a stream was not resumed to its end", "err", err)
	}
	return false
}

// isHeard reports whether the client has all of a stream that has ended.
func (s *session) isHeard(ctx context.Context, stream string, no int64) bool {
	ctx, cancel := s.table.withPatience(ctx)
	defer cancel()
	more, _, _, err := s.readLog(ctx, stream, no)
	return err == nil && len(more) == 0
}

// waitOf returns the request that is answered on a stream if its answer only waits for a task, and the state
// and the note of the stream. The request is nil also while the store is away.
func (h *Handler) waitOf(ctx context.Context, s *session, p shim.Principal, stream string) (q *request, state string, note []byte, err error) {
	ctx, cancel := s.table.withPatience(ctx)
	defer cancel()
	state, note, err = s.table.store.State(ctx, s.id, stream)
	about := readNote(note)
	if err != nil || state == "ended" || about.request.IsZero() || about.Task == "" {
		return nil, state, note, err
	}
	msg := jsonrpc.Message{Kind: jsonrpc.Request, ID: about.request, Method: mcp.MethodTasksResult, Params: dialect.Legacy.Named(about.Task)}
	if about.First {
		msg.Method = mcp.MethodToolsCall
		name := jsonrpc.AppendString([]byte(`{"name":`), endpoint.TaskResultTool)
		msg.Params = append(append(append(name, `,"arguments":`...), msg.Params...), '}')
	}
	return newLegacyRequest(h, s, p, msg), state, note, nil
}

// serveWait answers a request that waits for a task, on the stream that its client has resumed. The replica
// that answered it before stops.
func (h *Handler) serveWait(w http.ResponseWriter, r *http.Request, q *request, stream string, note []byte, no int64) {
	if err := q.enterCalls(); err != nil { // before the stream is taken over: its client may come again
		h.refuseRequest(w, jsonrpc.ID{}, err)
		return
	}
	defer q.leave()
	about := readNote(note).askNote
	x := wire.NewExchange(w, r, wire.ExchangeOptions{
		KeepAlive: h.Global.KeepAlive, Outlives: true,
		Progress: h.KeptProgress(q.msg.Method, q.name, json.RawMessage(about.Token)),
	})
	defer x.Close()
	l := newLog(r.Context(), q, x, stream)
	l.about = about
	defer l.finishStream()
	answered, err := l.resumeStream(r.Context(), no, newReplay(h.Endpoint, q.s, q.principal))
	if err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, &wire.Failure{Code: mcp.CodeInternal, Message: "the stream is not available", Status: http.StatusServiceUnavailable})
		return
	}
	if answered {
		return
	}
	q.log, q.out = l, x
	q.answerRequest(r)
}

// resumeStream makes this replica the one that keeps the stream, and sends what its log has after message no.
// It reports whether the answer is among that.
func (l *answerStream) resumeStream(ctx context.Context, no int64, r *replay) (answered bool, err error) {
	ctx, cancel := l.s.table.withPatience(ctx)
	defer cancel()
	if _, err := l.openStream(ctx); err != nil {
		return false, err
	}
	all, _, _, err := l.s.readLog(ctx, l.w.name, 0)
	if err != nil {
		l.noteLeft() // for the client to resume it again
		return false, err
	}
	var more []logEntry
	for _, m := range all {
		l.x.Heard(m.message)
		answered = answered || isAnswer(m.message, l.id)
		if m.no > no {
			more = append(more, m)
		}
	}
	l.w.state, l.w.no, l.w.asked, l.w.replay = logged, no, questionsOf(all), r
	l.x.Resumable(l.sendKept, func(out *eventstream.Writer) error {
		_ = out.Comment("open")
		l.w.out = out
		l.w.sendRest(ctx, nil, more, !answered)
		return nil
	})
	return answered, nil
}
