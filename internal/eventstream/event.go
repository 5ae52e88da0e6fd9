// Package eventstream turns bytes into server-sent events and back, for Streamable HTTP and the
// older HTTP+SSE transport of MCP. The rules are those of the HTML standard, section 9.2
// "Server-sent events". The package leaves the data of an event uninterpreted.
//
// It has a reader of its own because the scanner of go-sse looks at a pending event again with
// every read (a 16 MB event in small reads takes half a minute), drops retry and comments, and
// hands out an event that was cut off. Its writer has what a long-lived response needs: deadlines,
// keep-alive, and safety for concurrent use.
package eventstream

import (
	"fmt"
	"time"
)

// Event is one server-sent event. Data is valid until the next call of Next.
type Event struct {
	ID       string        // the id field of this very event, as opposed to the last one seen
	HasID    bool          // an empty id field clears the last event id, so it differs from an absent one
	Type     string        // the event field; empty means "message"
	Data     []byte        // the data lines joined by \n
	Retry    time.Duration // reconnection time that the sender asks for, whole milliseconds
	HasRetry bool          // a valid retry field was present
	Cut      bool          // the stream has ended without the blank line behind the event, see KeepLast
}

// TooLargeError reports an event above the limit of the reader. It ends the stream.
type TooLargeError struct {
	Limit int // bytes per event, line ends included
}

// Error returns a text with the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("event larger than %d bytes", e.Limit)
}
