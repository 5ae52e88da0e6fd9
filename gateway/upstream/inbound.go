package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
	"taskgate/shim"
)

// item is what one read of a response gives: the message of one event, which has none
// if it only carries an id, or why there are no more.
type item struct {
	msg      jsonrpc.Message
	eventID  string
	hasID    bool
	retry    time.Duration
	hasRetry bool
	err      error
}

// errNoAnswer: a JSON body that held no answer to the request.
var errNoAnswer = errors.New("the body answers another request")

// inbound hands out what a response says, message by message. A JSON body is
// one event and its end.
type inbound struct {
	body   io.ReadCloser
	events *eventstream.Reader // nil for a JSON body
	whole  item                // the JSON body
	head   item                // the latest one
	silent idle                // of a resumed stream
	over   atomic.Bool         // it was silent for too long
	hold   *budget.Hold        // of what is read
}

// errSilent: nothing came on a resumed stream for a while.
var errSilent = errors.New("the resumed stream is silent")

// expireAfter makes reading fail with errSilent when d passes without an event, so that the stream can be
// asked for again.
func (in *inbound) expireAfter(d time.Duration) {
	in.silent.startWatch(d, func() {
		in.over.Store(true)
		in.body.Close()
	})
}

// reading says how the response to a request is read.
type reading struct {
	id    string              // of the request
	hold  *budget.Hold        // of what is read
	touch func()              // the server has just been heard
	take  func(n int64) error // waits until there is room for n bytes more
}

func newStream(body io.ReadCloser, max int64, r *reading) *inbound {
	in := &inbound{
		body:   body,
		events: eventstream.NewReader(body, int(max), r.touch),
		hold:   r.hold,
	}
	in.events.Account(func(by int) error {
		if by < 0 {
			r.hold.Give(int64(-by))
			return nil
		}
		return r.take(int64(by))
	})
	return in
}

// readJSON reads a whole JSON body. Its bytes are kept: the answer aliases them.
func readJSON(resp *http.Response, max int64, r *reading) (*inbound, error) {
	defer resp.Body.Close()
	body, err := budget.ReadAll(resp.Body, resp.ContentLength, true, max, r.take)
	if errors.Is(err, budget.ErrTooLarge) {
		err = newError(shim.KindTooLarge, fmt.Sprintf("the answer of the server is larger than %d bytes", max), nil)
	}
	if err != nil {
		return nil, err
	}
	in := &inbound{hold: r.hold}
	in.whole.msg, err = in.parseMessage(body)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// parseMessage reads the message of a body or an event.
func (in *inbound) parseMessage(b []byte) (msg jsonrpc.Message, err error) {
	in.hold.InTurn(len(b), func() { msg, err = jsonrpc.ParseLenient(jsonrpc.Readable(b)) })
	if err != nil {
		return msg, protocolError("the server sent something that is no JSON-RPC message", err)
	}
	return msg, nil
}

// nextEvent waits for the next event. It, and its bytes, are valid until the following call. The goroutine
// of a call spends its time here and keeps the stack that it has grown to, so what comes after the
// waiting is done elsewhere.
func (in *inbound) nextEvent() *item {
	it := &in.head
	if in.events == nil {
		*it, in.whole = in.whole, item{err: errNoAnswer}
		return it
	}
	*it = item{} // the event before may be large
	in.silent.noteHeard()
	ev, err := in.events.Next()
	in.silent.stopWatch()
	switch {
	case err == nil:
		in.readEvent(it, &ev)
	case in.over.Load():
		it.err = errSilent
	default:
		it.err = err
	}
	return it
}

// readEvent reads an event. Other types than messages are not MCP's: some servers send
// pings of their own. An event without data only carries its id (X9).
func (in *inbound) readEvent(it *item, ev *eventstream.Event) {
	it.eventID, it.hasID, it.retry, it.hasRetry = ev.ID, ev.HasID, ev.Retry, ev.HasRetry
	switch data := ev.Data; {
	case ev.Type != "" && ev.Type != "message", len(bytes.TrimSpace(data)) == 0:
	case isFlat(data):
		it.msg, it.err = in.parseMessage(data)
	default:
		it.err = work.Apart(func() (err error) {
			it.msg, err = in.parseMessage(data)
			return err
		})
	}
}

// isFlat reports whether JSON is nested so little that parsing it takes little stack: as
// progress and log messages usually are, and questions are not. The goroutine of a call
// keeps the stack that it has grown to while the next event is waited for.
func isFlat(b []byte) bool { return bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) <= 3 }

// closeBody drops the response.
func (in *inbound) closeBody() {
	in.silent.stopWatch()
	if in.body != nil {
		in.body.Close()
	}
}

// dropResponse is closeBody for a response of which nothing is needed any more.
func (in *inbound) dropResponse() {
	in.closeBody()
	if in.events != nil {
		in.events.Drop()
	}
}

// finishResponse drops the response after the answer. Servers end the stream right after
// it, so a moment is spent on seeing that end: the connection can then be used
// again. A second answer, or anything else, is not waited for.
func (in *inbound) finishResponse() {
	if in.body == nil {
		return
	}
	timer := time.AfterFunc(endMost, func() { in.body.Close() }) // and not the exchange, which may go on
	defer timer.Stop()
	var b [1]byte
	_, _ = in.body.Read(b[:])
}

// endMost is how long the end of an answered stream is waited for.
const endMost = 10 * time.Millisecond

// idle is the watch over a response that must not be silent for too long.
type idle struct {
	d      time.Duration
	timer  *time.Timer
	paused atomic.Int32 // by how many
}

func (i *idle) startWatch(d time.Duration, f func()) {
	if d > 0 {
		i.d, i.timer = d, time.AfterFunc(d, func() {
			if i.paused.Load() == 0 {
				f()
			}
		})
	}
}

// noteHeard says that the server has just been heard.
func (i *idle) noteHeard() {
	if i.timer != nil && i.paused.Load() == 0 {
		i.timer.Reset(i.d)
	}
}

// pauseWatch stops the watch while it is not the server that is waited for.
func (i *idle) pauseWatch() {
	if i.timer != nil {
		i.paused.Add(1)
		i.timer.Stop()
	}
}

func (i *idle) resumeWatch() {
	if i.timer != nil {
		if i.paused.Add(-1) == 0 {
			i.timer.Reset(i.d)
		}
	}
}

func (i *idle) stopWatch() {
	if i.timer != nil {
		i.timer.Stop()
	}
}
