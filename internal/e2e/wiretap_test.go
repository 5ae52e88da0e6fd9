package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// wiretap keeps what clients and gateways say to each other through a proxy, for the report
// of a test that fails.
type wiretap struct {
	mu    sync.Mutex
	begun time.Time
	lines map[string][]string // by group of clients
}

// mostTapped bounds the length of a line that is kept.
const mostTapped = 600

// tapped is the key of the group in the context of a request.
type tapped struct{}

func newWiretap() *wiretap { return &wiretap{begun: time.Now(), lines: map[string][]string{}} }

// note keeps one line. who is the connection on which it was said.
func (w *wiretap) note(group, who string, line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines[group] = append(w.lines[group], fmt.Sprintf("%8.3f %s %.*s", time.Since(w.begun).Seconds(), who, mostTapped, line))
}

// request keeps the body of a request, and has the response to it kept.
func (w *wiretap) request(r *http.Request, group string, body []byte) *http.Request {
	who := fmt.Sprintf("%p %s", r, r.Method)
	w.note(group, who+" >", fmt.Appendf(bytes.TrimSpace(body), " %s", r.Header.Get("Last-Event-ID")))
	return r.WithContext(context.WithValue(r.Context(), tapped{}, func(line []byte) { w.note(group, who+" <", line) }))
}

// response keeps what comes in a response.
func (w *wiretap) response(r *http.Response) error {
	if note, ok := r.Request.Context().Value(tapped{}).(func([]byte)); ok {
		note([]byte(r.Status))
		r.Body = &tappedBody{ReadCloser: r.Body, note: note}
	}
	return nil
}

// about lists what was said in a group that has one of these texts in it.
func (w *wiretap) about(group string, texts ...string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(slices.DeleteFunc(slices.Clone(w.lines[group]), func(line string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return text != "" && strings.Contains(line, text) })
	}), "\n")
}

// tappedBody is a body whose lines are noted, and its end.
type tappedBody struct {
	io.ReadCloser
	note func(line []byte)
	rest []byte
}

// Read implements io.Reader.
func (b *tappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.rest = append(b.rest, p[:n]...)
	for {
		line, rest, ok := bytes.Cut(b.rest, []byte("\n"))
		if !ok {
			break
		}
		if len(line) > 0 {
			b.note(line)
		}
		b.rest = rest
	}
	if err != nil {
		b.note(fmt.Appendf(b.rest, " (%v)", err))
		b.rest = nil
	}
	return n, err
}
