package duplex

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strings"
)

// Link carries whole messages to one server and back. All of its methods may be called at
// once; Receive is called by one goroutine.
type Link interface {
	// Send sends one message. ErrOver says that the server is over and has not got it; a
	// *Refusal, that the server does not take this one. After any other error the server may
	// have got it, unless Reached was not called.
	Send(ctx context.Context, m Message) error
	// Receive returns the next message, which is the caller's. Errors are final.
	Receive() ([]byte, error)
	Fate(err error) *Ending
	// Stop begins to end the server in order, and returns at once.
	Stop()
	// Close waits for the end of a server that is stopped.
	Close()
}

// Message is one message to a server.
type Message struct {
	// Bytes are JSON, and the Link's from then on.
	Bytes []byte
	// Header is that of the HTTP request that brought the message; nil for what is said in
	// the gateway's own name.
	Header http.Header
	// Heard has a signal as soon as the server says something that belongs to this request;
	// nil if the message is none.
	Heard <-chan struct{}
}

// ErrOver is the error of a server that takes no more messages.
var ErrOver = errors.New("the server takes no more messages")

// Refusal is the error of a message, or of a Link that cannot be opened, where a server has
// said so by HTTP. RoundTrip returns its response.
type Refusal struct{ Response *http.Response }

// Error gives the status.
func (r *Refusal) Error() string { return "refused with HTTP status " + r.Response.Status }

// Ending says how a server has ended, or why it did not begin.
type Ending struct {
	// Kind is that of the shim.UpstreamError.
	Kind string
	// How goes on after Config.What: "was ended".
	How string
	// Said is what the server said last, in lines. It may be about any caller.
	Said string
	// Err is for the log alone.
	Err error
	// Usual says that it is no sign of trouble if nothing was in flight.
	Usual bool
}

// Error makes an Ending the error of Config.Open: the server did not begin.
func (e *Ending) Error() string { return e.How }

// Unwrap returns the cause.
func (e *Ending) Unwrap() error { return e.Err }

// What of a server's last words is shown to a client.
const (
	shownLines = 4
	shownBytes = 600
)

// lastLines are the last lines that the server said; "" if there are none.
func (e *Ending) lastLines() string {
	lines := strings.Split(e.Said, "\n")
	text := strings.Join(lines[max(0, len(lines)-shownLines):], " / ")
	if extra := len(text) - shownBytes; extra > 0 {
		text = "…" + strings.ToValidUTF8(text[extra:], "")
	}
	return text
}

// Reached says that a request is written, or about to be, as net/http does.
func Reached(ctx context.Context) {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Reused: true})
	}
}
