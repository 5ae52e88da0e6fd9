package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
)

// item is what one read of a response gives: the messages of one event, or why
// there are no more.
type item struct {
	msgs     []jsonrpc.Message
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
	one    [1]jsonrpc.Message  // room for the usual single message
	life   context.Context
	end    context.CancelCauseFunc
	pumped chan item // set once reading has a goroutine of its own
	silent *silence  // of a resumed stream
	late   bool      // its head has not been waited for
}

// silence ends the reading of a stream that says nothing, so that it can be
// asked for again.
type silence struct {
	d     time.Duration
	timer *time.Timer
	over  atomic.Bool
}

// errSilent: nothing came on a resumed stream for a while.
var errSilent = errors.New("the resumed stream is silent")

// expire makes reading fail with errSilent when d passes without an event.
func (in *inbound) expire(d time.Duration) {
	s := &silence{d: d}
	s.timer = time.AfterFunc(d, func() {
		s.over.Store(true)
		in.body.Close()
	})
	in.silent = s
}

func newStream(body io.ReadCloser, max int64, x *exchange) *inbound {
	return &inbound{
		body: body, life: x.life, end: x.end,
		events: eventstream.NewReader(body, int(max), x.idle.touch),
	}
}

// readJSON reads a whole JSON body. Its bytes are kept: the answer aliases them.
func readJSON(resp *http.Response, max int64, x *exchange) (*inbound, error) {
	defer resp.Body.Close()
	body, err := readAll(resp.Body, resp.ContentLength, max)
	if err != nil {
		return nil, err
	}
	in := &inbound{life: x.life, end: x.end}
	in.whole.msgs, err = in.parse(body)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// readAll reads up to limit bytes, with one allocation where the length is known.
func readAll(r io.Reader, length, limit int64) ([]byte, error) {
	tooLarge := fail(kindTooLarge, fmt.Sprintf("the answer of the server is larger than %d bytes", limit), nil)
	if length > limit {
		return nil, tooLarge
	}
	var buf bytes.Buffer
	buf.Grow(int(max(length, 0)) + bytes.MinRead)
	if _, err := buf.ReadFrom(io.LimitReader(r, limit+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) > limit {
		return nil, tooLarge
	}
	return buf.Bytes(), nil
}

// parse reads the messages of a body or an event: one, or a batch (2025-03-26,
// X13).
func (in *inbound) parse(b []byte) ([]jsonrpc.Message, error) {
	elems, batch, err := jsonrpc.Split(b)
	if err != nil {
		return nil, garbage(err)
	}
	if !batch {
		in.one[0], err = jsonrpc.ParseLenient(b)
		if err != nil {
			return nil, garbage(err)
		}
		return in.one[:], nil
	}
	msgs := make([]jsonrpc.Message, 0, len(elems))
	for _, e := range elems {
		m, err := jsonrpc.ParseLenient(e)
		if err != nil {
			return nil, garbage(err)
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}

func garbage(err error) error {
	return protocolError("the server sent something that is no JSON-RPC message", err)
}

// next returns the next event. Its bytes are valid until the following call.
func (in *inbound) next() item {
	if in.pumped != nil {
		select {
		case it := <-in.pumped:
			return it
		case <-in.life.Done():
			return item{err: context.Cause(in.life)}
		}
	}
	return in.read()
}

func (in *inbound) read() item {
	if in.events == nil {
		it := in.whole
		in.whole = item{err: errNoAnswer}
		return it
	}
	ev, err := in.event()
	if err != nil {
		return item{err: err}
	}
	it := item{eventID: ev.ID, hasID: ev.HasID, retry: ev.Retry, hasRetry: ev.HasRetry}
	// Other types are not MCP's: some servers send pings of their own. An event
	// without data only carries its id (X9).
	if (ev.Type == "" || ev.Type == "message") && len(bytes.TrimSpace(ev.Data)) > 0 {
		it.msgs, it.err = in.parse(ev.Data)
	}
	return it
}

func (in *inbound) event() (eventstream.Event, error) {
	if in.silent == nil {
		return in.events.Next()
	}
	in.silent.timer.Reset(in.silent.d)
	ev, err := in.events.Next()
	in.silent.timer.Stop()
	if err != nil && in.silent.over.Load() {
		err = errSilent
	}
	return ev, err
}

// pump gives the reading a goroutine of its own, so that the stream is heard
// while a question waits for its answer. It ends with the stream or the
// exchange.
func (in *inbound) pump() {
	if in.pumped != nil {
		return
	}
	in.pumped = make(chan item, maxPumped)
	go in.feed(in)
}

// maxPumped is how many events are read ahead.
const maxPumped = 16

// feed hands on what is read from a stream until it ends, or the exchange does.
func (in *inbound) feed(from *inbound) {
	for {
		it := from.read()
		it.msgs = keep(it.msgs)
		select {
		case in.pumped <- it:
		case <-in.life.Done():
			return
		}
		if it.err != nil {
			return
		}
	}
}

// keep copies messages out of the reader's buffer.
func keep(msgs []jsonrpc.Message) []jsonrpc.Message {
	out := make([]jsonrpc.Message, 0, len(msgs))
	for _, m := range msgs {
		c, err := jsonrpc.ParseLenient(raw(m.Raw))
		if err == nil { // it has been parsed once already
			out = append(out, c)
		}
	}
	return out
}

// close drops the response.
func (in *inbound) close() {
	if in.silent != nil {
		in.silent.timer.Stop()
	}
	if in.body != nil {
		in.body.Close()
	}
}

// finish drops the response after the answer. Servers end the stream right after
// it, so a moment is spent on seeing that end: the connection can then be used
// again. A second answer, or anything else, is not waited for.
func (in *inbound) finish() {
	if in.body == nil || in.pumped != nil {
		return
	}
	timer := time.AfterFunc(lastWords, func() { in.end(nil) })
	defer timer.Stop()
	var b [1]byte
	_, _ = in.body.Read(b[:])
}

// lastWords is how long the end of an answered stream is waited for.
const lastWords = 10 * time.Millisecond

// idle is the watch over a response that must not be silent for too long.
type idle struct {
	d      time.Duration
	timer  *time.Timer
	paused atomic.Int32 // by how many
}

func (i *idle) start(d time.Duration, f func()) {
	if d > 0 {
		i.d, i.timer = d, time.AfterFunc(d, func() {
			if i.paused.Load() == 0 {
				f()
			}
		})
	}
}

// touch says that the server has just been heard.
func (i *idle) touch() {
	if i.timer != nil && i.paused.Load() == 0 {
		i.timer.Reset(i.d)
	}
}

// pause stops the watch while it is not the server that is waited for.
func (i *idle) pause() {
	if i.timer != nil {
		i.paused.Add(1)
		i.timer.Stop()
	}
}

func (i *idle) resume() {
	if i.timer != nil {
		if i.paused.Add(-1) == 0 {
			i.timer.Reset(i.d)
		}
	}
}

func (i *idle) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}
