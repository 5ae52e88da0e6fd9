package transport

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// Carrier carries messages to one server and back. It is safe for concurrent use.
//
// An error is a *[StatusError] where the server has refused the message or does not know its
// session, a *shim.UpstreamError or *shim.BusyError where the transport can say what is wrong, the
// cause of the end of ctx, or one of the network. After any of them the server may have got the
// message, unless its Sender was not told that it was reached.
type Carrier interface {
	// Request sends a request. The stream has what belongs to it, and the answer last. It lives
	// as long as ctx.
	Request(ctx context.Context, m *Message) (Stream, error)
	// Notify sends what is not answered: a notification, or a response to the server.
	Notify(ctx context.Context, m *Message) error
	// Listen opens the stream of what belongs to no request of a session, or what is left of the
	// stream that an event names (Message.Last).
	Listen(ctx context.Context, m *Message) (Stream, error)
	// EndSession tells the server that a session is over.
	EndSession(ctx context.Context, m *Message) error
}

// Transport is a Carrier with what it holds.
type Transport interface {
	Carrier
	// Reach reports whether the server could be reached. It starts nothing.
	Reach(ctx context.Context) error
	// Close ends what the transport holds. It waits for that until ctx ends.
	Close(ctx context.Context) error
}

// Message is one message to a server, or what Listen and EndSession are about.
type Message struct {
	// Body is the JSON of the message; nil for Listen and EndSession. The transport may change its white space.
	Body []byte
	// ID and Method are those of a request, as Body has them. Method is "" for anything else.
	ID     jsonrpc.ID
	Method string
	// Params are those of an initialize.
	Params json.RawMessage

	// Session is the id that the server knows its session by; "" for none. Version is that of the
	// protocol, "" before it is negotiated. Modern says that the message belongs to no session,
	// but brings all that the server has to know (protocol.md 2.2).
	Session, Version string
	Modern           bool
	// Header goes along where the transport has headers.
	Header http.Header
	// Last is the id of the event after which Listen goes on; "" for a new stream.
	Last string

	// Own says that the message is the gateway's own, and belongs to no request of a client.
	Own bool
	// Caller is in whose name the message is sent, for a transport that keeps callers apart.
	Caller shim.Session
	// IsHeard reports whether a client is there for what Listen hears; nil if there always is.
	IsHeard func() bool
	// Sender hears how the message fares.
	Sender
	// Hold has the bytes of what is read.
	Hold *budget.Hold
}

// Sender is whoever sends a message.
type Sender interface {
	// NoteReached is told that the message is written, or about to be.
	NoteReached()
	// NoteHeard is told that the server has just been heard.
	NoteHeard()
	// TakeRoom waits until there is room to read n bytes more into the hold.
	TakeRoom(n int64) error
}

// Nobody is a Sender that ignores what it hears.
type Nobody struct{}

// NoteReached implements Sender.
func (Nobody) NoteReached() {}

// NoteHeard implements Sender.
func (Nobody) NoteHeard() {}

// TakeRoom implements Sender.
func (Nobody) TakeRoom(int64) error { return nil }

// Stream is what a server says to one request, or in a session outside of any. One goroutine reads
// it; Close may be called from others.
type Stream interface {
	// Next waits for the next event. It, and its bytes, are valid until the following call.
	Next() *Event
	// Finish is called after the answer: nothing more is read.
	Finish()
	// Close ends the stream. What was read last stays valid: after an error of Next there is no such thing.
	Close()
	// Head says what is known before the first event.
	Head() Head
}

// Head is what is known of a stream before its first event.
type Head struct {
	// Session is the id of the session that an initialize has opened; "" for none.
	Session string
	// Protocol is the version of HTTP, "" where the transport is none of HTTP.
	Protocol string
	// Single says that the answer is all there is: no event stream.
	Single bool
}

// Event is what one read of a stream gives: a message, which has none if it only carries an id, or
// why there are no more.
type Event struct {
	Message jsonrpc.Message
	// ID is that of the event, for Message.Last; HasID says that it has one.
	ID    string
	HasID bool
	// Retry is how long the server asks to wait before the stream is asked for again; 0 for nothing new.
	Retry time.Duration
	// Err is io.EOF or io.ErrUnexpectedEOF at the end of the stream, the cause of the end of the
	// context, a *shim.UpstreamError, or one of the network.
	Err error
}
