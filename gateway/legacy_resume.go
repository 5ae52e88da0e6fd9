package gateway

import (
	"context"
	"net/http"
	"slices"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// resumeCheck is how often a stream that is resumed looks whether its replica lives,
// whatever it has heard.
const resumeCheck = 5 * time.Second

// serveResume goes on with the answer to a request whose stream broke (X8): it sends
// what that stream had after the client's last event, from the log, which any replica
// can read, and what it gets from then on, until the answer is complete. A stream that
// the session does not have is empty, whoever else may have it: nothing is learned
// from its end.
func (e *endpoint) serveResume(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, stream string, no int64) {
	ctx, done, err := e.gateway.streams.enter(r.Context())
	defer done()
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, &failure{Code: mcp.CodeInternal, Message: err.Error(), Status: http.StatusServiceUnavailable})
		return
	}
	out, err := eventstream.NewWriter(w, r, eventstream.Options{WriteTimeout: writeTimeout, KeepAlive: e.gateway.config.KeepAlive})
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, &failure{Code: mcp.CodeInternal, Message: "streams are not available", Status: http.StatusInternalServerError})
		return
	}
	defer out.Close()
	if out.Comment("open") != nil {
		return
	}
	t := tail{s: s, stream: stream, no: no, out: out, client: r.Context(), replay: e.newReplay(s.principal(p))}
	if err := t.follow(ctx); err != nil {
		e.log.DebugContext(ctx, "a stream was not resumed to its end", "err", err)
	}
}

// tail follows the log of one stream.
type tail struct {
	s      *session
	stream string
	no     int64 // of the last message sent
	out    *eventstream.Writer
	client context.Context // ends when the client's connection does
	replay *replay
	caught bool // what was there before has been sent
}

// follow sends until the stream has ended, the client goes, or the session ends.
func (t *tail) follow(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wake := make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() { // ends with ctx
		defer close(watched)
		t.s.table.store.Watch(ctx, t.s.id, func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
	}()
	defer func() {
		stop()
		<-watched
	}()
	check := time.NewTicker(resumeCheck)
	defer check.Stop()
	var asking func()
	for {
		state, note, err := t.catchUp(ctx)
		if asking == nil && state == "open" {
			asking = t.askResumed(ctx, note)
			defer asking()
		}
		switch {
		case t.out.Err() != nil:
			return t.out.Err()
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil: // the store is away: the client waits, as for any answer
		case state == "lost":
			if t.bury(ctx) {
				continue // the answers are in the log
			}
		case state != "open":
			return nil
		}
		select {
		case <-wake:
		case <-check.C:
		case <-ctx.Done():
			return nil
		case <-t.s.ctx.Done():
			return nil
		}
	}
}

// catchUp sends what the log has and the client has not.
func (t *tail) catchUp(ctx context.Context) (state string, note []byte, err error) {
	more, state, note, err := t.s.logged(ctx, t.stream, t.no)
	for _, m := range more {
		if !t.caught && t.replay.stale(ctx, m.message) || t.out.Send(eventID(t.stream, m.no), m.message) == nil {
			t.no = m.no
		}
	}
	t.caught = t.caught || err == nil
	return state, note, err
}

// bury ends a stream whose replica is gone: nobody else answers its requests. Where it was
// not that, or cannot be known, it is looked again.
func (t *tail) bury(ctx context.Context) bool {
	buried, err := t.s.table.store.Bury(ctx, t.s.id, t.stream, lastWords)
	return buried && err == nil
}

// lastWords are the answers to the requests of a lost stream that have none in its log.
func lastWords(note []byte, had [][]byte) (last [][]byte) {
	lost := &jsonrpc.Error{Code: mcp.CodeInternal, Message: "the replica that ran this call was lost; the upstream may have finished the work"}
	streams := false
	for _, n := range readAskNotes(note) {
		if n.Streams {
			f := streamLost(n.Task)
			lost, streams = &jsonrpc.Error{Code: f.Code, Message: f.Message, Data: f.Data}, true
		}
	}
	for _, id := range noted(note) {
		if !slices.ContainsFunc(had, func(m []byte) bool { return isAnswer(m, id, streams) }) {
			last = append(last, jsonrpc.AppendError(nil, id, lost))
		}
	}
	return last
}

// noLastWords are those of a stream that needs none.
func noLastWords([]byte, [][]byte) [][]byte { return nil }

// isAnswer reports whether a message is the last answer to a request. To one that streams
// there are several.
func isAnswer(message []byte, id jsonrpc.ID, streams bool) bool {
	m, err := jsonrpc.Parse(message)
	switch {
	case err != nil || m.Kind != jsonrpc.Result && m.Kind != jsonrpc.ErrorResponse || !m.ID.Equal(id):
		return false
	case m.Kind == jsonrpc.Result && streams:
		complete, _ := jsonrpc.Get(m.Result, "isComplete")
		return string(complete) == "true"
	}
	return true
}
