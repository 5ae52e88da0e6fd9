package main

import (
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"

	"taskgate/internal/eventstream"
)

// maxMessage is the largest message that is read.
const maxMessage = 64 << 20

// messages are those of a response, which is a stream of events or one message.
func messages(resp *http.Response) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			yield(io.ReadAll(resp.Body))
			return
		}
		events := eventstream.NewReader(resp.Body, maxMessage)
		for {
			e, err := events.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if len(e.Data) == 0 && err == nil {
				continue
			}
			if !yield(e.Data, err) || err != nil {
				return
			}
		}
	}
}
