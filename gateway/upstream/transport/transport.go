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
// An error is a *[StatusError] if the server has refused the message or its session is unknown, a
// *shim.UpstreamError or *shim.BusyError if the transport knows what is wrong, the cause of the end of ctx,
// or one of the network. After any of them the server may have got the message, if its Sender was told that
// it was reached.
type Carrier interface {
	// Request sends a request. The stream has the messages of that request, and the answer last. It lives as
	// long as ctx.
	Request(ctx context.Context, m *Outgoing) (Stream, error)
	// Notify sends a message that has no answer: a notification, or a response to the server.
	Notify(ctx context.Context, m *Outgoing) error
	// Listen opens the stream of a session for messages outside of any request, or the rest of the stream
	// that an event names (Message.Last).
	Listen(ctx context.Context, m *Outgoing) (Stream, error)
	// EndSession tells the server that a session is over.
	EndSession(ctx context.Context, m *Outgoing) error
}

// Transport is a Carrier that holds connections or processes.
type Transport interface {
	Carrier
	// Reach returns an error if the server cannot be reached. It starts nothing.
	Reach(ctx context.Context) error
	// Close ends everything that the transport holds, and waits for that until ctx ends.
	Close(ctx context.Context) error
}

// Outgoing is one message to a server, or the subject of Listen and EndSession.
type Outgoing struct {
	// Body is the JSON of the message; nil for Listen and EndSession. The transport may change its white space.
	Body []byte
	// ID and Method are those of a request, as Body has them. Method is "" for any other message.
	ID     jsonrpc.ID
	Method string
	// Params are those of an initialize.
	Params json.RawMessage

	// Session is the server's id of its session; "" outside of a session. Version is that of the protocol, ""
	// before it is negotiated. Modern says that the message stands outside of sessions, and brings all that
	// the server has to know (protocol.md 2.2).
	Session, Version string
	Modern           bool
	// Cookie is the Head.Cookie of the session.
	Cookie string
	// Header goes along if the transport has headers.
	Header http.Header
	// Last is the id of the event after which Listen goes on; "" for a new stream.
	Last string

	// Own says that the message is the gateway's own, apart from any request of a client.
	Own bool
	// Caller is the client on whose behalf the message is sent, for a transport that keeps callers apart.
	Caller shim.Session
	// IsHeard reports whether a client is there for the messages of Listen; nil means always.
	IsHeard func() bool
	// Sender is told how the message fares.
	Sender
	// Hold has the bytes that are read.
	Hold *budget.Hold
}

// Sender is the sender of a message.
type Sender interface {
	// NoteReached is called when the message is written, or about to be.
	NoteReached()
	// NoteHeard is called when the server has just been heard.
	NoteHeard()
	// NoteWaiting is called by Stream.Next before it waits for the server.
	NoteWaiting()
	// TakeRoom waits until there is room to read n more bytes into the hold.
	TakeRoom(n int64) error
}

// Nobody is the Sender of a message about which its sender needs no news. There is room for any answer.
type Nobody struct{}

// NoteReached implements Sender.
func (Nobody) NoteReached() {}

// NoteHeard implements Sender.
func (Nobody) NoteHeard() {}

// NoteWaiting implements Sender.
func (Nobody) NoteWaiting() {}

// TakeRoom implements Sender.
func (Nobody) TakeRoom(int64) error { return nil }

// Stream has the server's messages for one request, or those of a session outside of any request. A single
// goroutine reads it; others may call Close.
type Stream interface {
	// Next waits for the next event. The event and its bytes are valid until the following call.
	Next() *Event
	// Finish is called by the reader once it reads no more. If the answer was read, only the end of the stream follows.
	Finish()
	// Close ends the stream early. The event that was read last stays valid, unless it is an error.
	Close()
	// Head says what is known before the first event.
	Head() Head
}

// Head is what is known of a stream before its first event.
type Head struct {
	// Session is the id of the session that an initialize has opened; "" if there is none.
	Session string
	// Cookie has the cookies that came with the session, as a request sends them (X11). A balancer in front of the
	// server finds the session by them (mcp-remote #168).
	Cookie string
	// Protocol is the version of HTTP; "" for another protocol.
	Protocol string
	// Single says that the answer is the whole response, and not an event stream.
	Single bool
}

// Event is the result of one read of a stream: a message, which is empty if the event only carries an id, or
// the error that ends the stream.
type Event struct {
	Message jsonrpc.Message
	// ID is that of the event, for Message.Last; HasID says that there is one.
	ID    string
	HasID bool
	// Retry is how long the server asks to wait before the next attempt at the stream; 0 changes nothing.
	Retry time.Duration
	// Err is io.EOF or io.ErrUnexpectedEOF at the end of the stream, the cause of the end of the
	// context, a *shim.UpstreamError, or one of the network.
	Err error
}
