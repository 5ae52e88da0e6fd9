package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"sync"

	"taskgate/internal/jsonrpc"
)

// readSize is the size of one read, in bytes.
const readSize = 64 << 10

var errClosed = errors.New("nothing is written any more")

// tooLargeError is a line that is too long. id is that of its request, if it can be found; zero
// otherwise.
type tooLargeError struct{ id jsonrpc.ID }

func (*tooLargeError) Error() string { return "the message is too large" }

// keptOfLarge is how many bytes are kept of each end of a line that is too long.
const keptOfLarge = 4 << 10

// The id of a request is before its parameters, or the last of its members.
var (
	idBefore = regexp.MustCompile(`^\s*\{(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"]*"\s*,)*\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)\s*,`)
	idAfter  = regexp.MustCompile(`,\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)\s*(?:,\s*"jsonrpc"\s*:\s*"2.0"\s*)?\}\s*$`)
)

// tooLarge is the error for a line whose ends are known.
func tooLarge(head, tail []byte) *tooLargeError {
	found := idBefore.FindSubmatch(head)
	if found == nil {
		found = idAfter.FindSubmatch(tail)
	}
	method := []byte(`"method"`)
	if found == nil || !bytes.Contains(head, method) && !bytes.Contains(tail, method) {
		return &tooLargeError{}
	}
	id, _ := jsonrpc.ParseID(found[1])
	return &tooLargeError{id}
}

// lineReader reads lines of limited length.
type lineReader struct {
	r   *bufio.Reader
	max int64 // bytes of a line, before its end
}

func newLineReader(r io.Reader, most int64) *lineReader {
	return &lineReader{bufio.NewReaderSize(r, readSize), most}
}

// next returns the next line, cut before its end; the caller owns it. A line that is too long is
// read to its end, and returned as a *tooLargeError: the line after it can be read. Text before the
// end of the input counts as a line, too. Other errors are final.
func (l *lineReader) next() ([]byte, error) {
	var line, head, tail []byte
	large := false
	for {
		part, err := l.r.ReadSlice('\n')
		switch {
		case large:
		case int64(len(line)+len(part)) > l.max+2: // with \r\n
			large = true
			head = append(line, part...)
			head, line = bytes.Clone(head[:min(len(head), keptOfLarge)]), nil
		default:
			line = append(line, part...)
		}
		if large {
			tail = append(tail, part[max(0, len(part)-keptOfLarge):]...)
			tail = bytes.Clone(tail[max(0, len(tail)-keptOfLarge):])
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && len(line) == 0 && !large:
			return nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if large {
			return nil, tooLarge(head, bytes.TrimRight(tail, "\r\n"))
		}
		if int64(len(line)) > l.max {
			return nil, tooLarge(line, line)
		}
		return line, nil
	}
}

// output writes lines, one at a time. A client that stops reading holds up all writers.
type output struct {
	w     io.Writer
	lines chan []byte
	begun chan struct{} // closed when the first line is written
	begin func()        // closes begun
	stop  chan struct{} // closed to end it
	done  chan struct{} // closed when writing has ended
	err   error         // of a failed write; nil after closeOutput; read once done is closed
}

func newOutput(w io.Writer) *output {
	begun := make(chan struct{})
	return &output{
		w: w, lines: make(chan []byte), begun: begun, begin: sync.OnceFunc(func() { close(begun) }), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// writeUntilEnd writes until a write fails, or until closeOutput. If the client stops reading, a write lasts as
// long as this process.
func (o *output) writeUntilEnd() {
	defer close(o.done)
	for {
		select {
		case line := <-o.lines:
			o.begin()
			if _, o.err = o.w.Write(line); o.err != nil {
				return
			}
		case <-o.stop:
			return
		}
	}
}

// sendLine writes a message as a line. It copies the message, and returns once the line is the next one
// to be written.
func (o *output) sendLine(message []byte) error {
	return o.sendLineWithin(context.Background(), message)
}

// sendLineWithin is sendLine, but gives up when ctx ends.
func (o *output) sendLineWithin(ctx context.Context, message []byte) error {
	line := make([]byte, len(message)+1)
	copy(line, message)
	jsonrpc.OneLine(line)
	line[len(message)] = '\n'
	select {
	case o.lines <- line:
		return nil
	case <-ctx.Done():
	case <-o.done:
	case <-o.stop:
	}
	return errClosed
}

// closeOutput stops writing, and waits for the present write, or until ctx ends.
func (o *output) closeOutput(ctx context.Context) error {
	close(o.stop)
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
