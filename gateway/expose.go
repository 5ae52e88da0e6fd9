package gateway

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"taskgate/gateway/upstream/forward"
)

// exposing is a response that gets headers of the server's answer when it begins. What the server says later comes too
// late: an answer becomes a stream after some silence, and a call may become a task.
type exposing struct {
	http.ResponseWriter
	from  *forward.Exposed
	begun bool
}

// begin adds the headers, once. A page is told of their names.
func (w *exposing) begin() {
	if w.begun {
		return
	}
	w.begun = true
	of, own := w.from.Header(), w.Header()
	for name, values := range of {
		if _, taken := own[name]; !taken {
			own[name] = values
		}
	}
	if told := own.Get(exposeHeaders); told != "" && len(of) > 0 {
		own.Set(exposeHeaders, told+", "+strings.Join(slices.Sorted(maps.Keys(of)), ", "))
	}
}

// WriteHeader begins the response.
func (w *exposing) WriteHeader(status int) {
	w.begin()
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the response, if WriteHeader has not.
func (w *exposing) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController, and begins the response, too.
func (w *exposing) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *exposing) Unwrap() http.ResponseWriter { return w.ResponseWriter }
