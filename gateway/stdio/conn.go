package stdio

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// Options says what a Conn serves.
type Options struct {
	// Handler is the gateway's.
	Handler http.Handler
	// Path is that of the client's server at the handler.
	Path string
	// MaxMessage bounds a message of the client, in bytes.
	MaxMessage int64
	// MaxRequests bounds the client's requests in flight, including those whose answers it has yet to read. 0
	// is any number.
	MaxRequests int
	// Logger takes messages that the client cannot be told; nil is slog.Default.
	Logger *slog.Logger
}

const (
	// lastAnswers is how long requests in flight are waited for after the client has closed its output.
	// Clients wait for 2 s and more before they send SIGTERM.
	lastAnswers = time.Second
	// firstAnswer is how long a legacy client's first answer is waited for before that: a script writes all messages and
	// closes its output (echo … | npx server), and the server may have to start.
	firstAnswer = time.Minute
	// queue is how many lines are read ahead of the one that is being taken.
	queue = 4
	// maxBehind is how long a request waits for the notification before it, such as one of changed roots. Its
	// server may read slowly.
	maxBehind = time.Second
	// maxNotes bounds the notifications and answers to questions that are passed on at a time.
	maxNotes = 16
)

// Conn is a client that speaks over a pair of streams.
//
// It takes messages in their order, and takes the next one when a request has begun, so that a cancellation
// finds its request. Requests are answered concurrently. The answer to initialize is waited for, since
// requests of its session follow.
type Conn struct {
	o   Options
	out *output

	ctx     context.Context // of everything; ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // of everything
	notes   chan struct{}  // places for the posts of postInOrder
	session session
	latest  chan struct{} // of the latest notification; closed once it is passed on. Only takeLine uses it.

	mu    sync.Mutex
	asked map[string]*inFlight // requests in flight, by the key of their id
	ended chan struct{}        // a signal: an exchange has ended
	// open counts the exchanges, and listening those of them that last until one side ends them.
	open, listening int
}

// New makes a Conn that writes to out. The caller calls Serve once, and Close afterwards.
func New(out io.Writer, o Options) *Conn {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	c := &Conn{
		o: o, out: newOutput(out), notes: make(chan struct{}, maxNotes),
		session: session{turn: make(chan struct{}, 1)}, latest: make(chan struct{}),
		asked: make(map[string]*inFlight), ended: make(chan struct{}, 1),
	}
	close(c.latest)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.out.writeUntilEnd()
	return c
}

// Serve takes what the client writes to in, until in or ctx ends, or until writing fails, which is the error.
// If in has ended, requests in flight are waited for, for a second at most. A legacy client that has heard
// nothing yet gets a minute for the first answer. A read lasts until in ends, or this process does.
func (c *Conn) Serve(ctx context.Context, in io.Reader) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lines := make(chan line, queue)
	go func() {
		if readLines(ctx, newLineReader(in, c.o.MaxMessage), lines) {
			_ = work.PauseFor(ctx, c.out.begun, firstAnswer)
			time.AfterFunc(lastAnswers, stop)
		}
	}()
	for lines != nil || c.isBusy() {
		select {
		case l, more := <-lines:
			if !more {
				lines = nil
				continue
			}
			c.takeLine(ctx, l)
		case <-c.ended:
		case <-c.out.done:
			return c.out.err
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// line is a line that was read, or the error that it is too large.
type line struct {
	text  []byte
	large *tooLargeError
}

// readLines reads lines until the reader or ctx ends, and closes lines then. It reports whether the reader has ended.
func readLines(ctx context.Context, r *lineReader, lines chan<- line) (ended bool) {
	defer close(lines)
	for {
		text, err := r.next()
		large, _ := err.(*tooLargeError)
		if err != nil && large == nil {
			return true
		}
		select {
		case lines <- line{text, large}:
		case <-ctx.Done():
			return false
		}
	}
}

func (c *Conn) isBusy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open > c.listening
}

// takeLine takes one line. It returns when the next one may be taken, or when ctx ends.
func (c *Conn) takeLine(ctx context.Context, l line) {
	if l.large != nil {
		_ = c.out.sendLineWithin(ctx, spellError(l.large.id, &jsonrpc.Error{Code: mcp.CodeInvalidRequest, Message: l.large.Error()}))
		return
	}
	if len(bytes.TrimSpace(l.text)) == 0 {
		return
	}
	m, err := jsonrpc.Parse(l.text)
	switch {
	case err != nil, m.Kind == jsonrpc.Request: // or a text that the gateway refuses
		c.answerRequest(ctx, m, l.text)
	case m.Kind != jsonrpc.Notification:
		c.postInOrder(ctx, m, l.text)
	case m.Method == mcp.NotifyCancelled && c.cancelRequest(m):
	case m.Method == mcp.NotifyCancelled:
		c.postMessage(m, l.text)
	case m.Method == mcp.NotifyInitialized:
		c.postMessage(m, l.text)
		c.openStream()
	default:
		c.postInOrder(ctx, m, l.text)
	}
}

// postInOrder posts a message that may have to wait: a notification for the server, or an answer to a question for
// the store. Notifications keep their order.
func (c *Conn) postInOrder(ctx context.Context, m jsonrpc.Message, text []byte) {
	select {
	case c.notes <- struct{}{}:
	case <-ctx.Done():
		return
	}
	if m.Kind != jsonrpc.Notification {
		c.running.Go(func() {
			defer func() { <-c.notes }()
			c.postMessage(m, text)
		})
		return
	}
	before, posted := c.latest, make(chan struct{})
	c.latest = posted
	c.running.Go(func() {
		defer func() { <-c.notes }()
		defer close(posted)
		select {
		case <-before:
		case <-c.ctx.Done():
		}
		c.postMessage(m, text)
	})
}

// postMessage hands on a notification or an answer to a question.
func (c *Conn) postMessage(m jsonrpc.Message, text []byte) {
	w, err := c.serveHTTP(c.ctx, http.MethodPost, c.session.currentID(), text, nobody)
	if err != nil || w.status != http.StatusAccepted {
		c.o.Logger.Debug("a message of the client was not taken", "kind", m.Kind.String(), "method", m.Method, "err", err)
	}
}

// nobody drops the messages of an answer.
func nobody([]byte) error { return nil }

// Close ends the exchanges in flight, as the gateway does for a client that leaves. It waits for them and for
// the last write, or until ctx ends.
func (c *Conn) Close(ctx context.Context) error {
	over := make(chan struct{})
	go func() {
		defer close(over)
		if id := c.session.currentID(); id != "" {
			// This ends the calls of the session; the end of their HTTP request does not (X3).
			_, _ = c.serveHTTP(ctx, http.MethodDelete, id, nil, nobody)
		}
		c.cancel()
		c.running.Wait()
	}()
	select {
	case <-over:
	case <-ctx.Done():
		c.cancel()
	}
	return c.out.closeOutput(ctx)
}
