package duplex

import (
	"context"
	"errors"
	"slices"
	"strings"

	"taskgate/gateway/upstream/transport"
	"taskgate/shim"
)

// Link carries whole messages to one server and back. Its methods may be called concurrently; a
// single goroutine calls Receive.
type Link interface {
	// Send sends one message. ErrOver says that the server is over and has not got it; a
	// *transport.StatusError, that the server refuses it. After any other error the server may have
	// got it, if m.NoteReached was called. heard has a signal as soon as the server says something
	// about this request; it is nil for other messages.
	Send(ctx context.Context, m *transport.Outgoing, heard <-chan struct{}) error
	// Receive returns the next message, which is the caller's. Errors are final.
	Receive() ([]byte, error)
	// Fate says how the server has ended, after Receive has returned err.
	Fate(err error) *Exit
	// Stop begins to end the server in order, and returns at once.
	Stop()
	// Close waits for the end of a server that is stopped.
	Close()
}

// ErrOver is the error of a server that takes no more messages.
var ErrOver = errors.New("the server takes no more messages")

// Exit says how a server has ended, or why it failed to begin.
type Exit struct {
	// Kind is that of the shim.UpstreamError.
	Kind string
	// How goes on after Config.What: "was ended".
	How string
	// Said is the server's last output, in lines. It may be about any caller.
	Said string
	// Err is for the log alone.
	Err error
	// Usual says that such an end is normal if nothing was in flight. It is no failure, however soon, of a
	// server that has answered more than a handshake.
	Usual bool
}

// Error makes an Ending the error of Config.Open: the server failed to begin.
func (e *Exit) Error() string { return e.How }

// Unwrap returns the cause.
func (e *Exit) Unwrap() error { return e.Err }

// How much of a server's last output a client sees.
const (
	shownLines = 12
	shownBytes = 1600
)

// toError is the error for requests to what has ended. The last output may be about other callers than theirs:
// only if it is theirs, the message has it.
func (e *Exit) toError(what string, theirs bool) *shim.UpstreamError {
	ue := &shim.UpstreamError{Kind: e.Kind, Message: what + " " + e.How, Err: e.Err}
	switch text := e.lastLines(); {
	case text == "":
	case theirs:
		ue.Message += ": " + text
	default:
		ue.Err = errors.Join(e.Err, errors.New(text))
	}
	return ue
}

// idleLines begin lines of runners that say nothing of the server: npm writes them behind its errors.
var idleLines = []string{"npm notice", "npm warn", "npm error A complete log of this run", "npm ERR! A complete log of this run"}

func isIdle(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || line == "npm error" || slices.ContainsFunc(idleLines, func(begin string) bool { return strings.HasPrefix(line, begin) })
}

// lastLines returns the last lines of the server's output that matter; "" if it is empty.
func (e *Exit) lastLines() string {
	lines := slices.DeleteFunc(strings.Split(e.Said, "\n"), isIdle)
	text := strings.Join(lines[max(0, len(lines)-shownLines):], " / ")
	if extra := len(text) - shownBytes; extra > 0 {
		text = "…" + strings.ToValidUTF8(text[extra:], "")
	}
	return text
}
