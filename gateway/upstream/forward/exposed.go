package forward

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
)

// Exposed are the headers with which a server answers a client's request, and which the client gets with its answer. The
// headers of other requests that are made for the client, such as a handshake, stay here.
type Exposed struct {
	names  []string // canonical; one that ends with * is the beginning of names
	method atomic.Pointer[string]
	got    atomic.Pointer[http.Header]
}

// maxExposed bounds the headers of one answer, in bytes: those that would exceed it are left out.
const maxExposed = 8 << 10

// NewExposed takes the names of headers, as expose_headers has them.
func NewExposed(names []string) *Exposed {
	e := &Exposed{names: make([]string, len(names))}
	for i, name := range names {
		e.names[i] = http.CanonicalHeaderKey(name)
	}
	return e
}

// Await sets the method of the client's request. Until then no answer is that to the request.
func (e *Exposed) Await(method string) {
	if e != nil {
		e.method.Store(&method)
	}
}

// take takes the headers of an answer to a request of this method. Those of the last answer count: a request that the
// server did not begin is sent again.
func (e *Exposed) take(method string, h http.Header) {
	if e == nil {
		return
	}
	if mine := e.method.Load(); mine == nil || *mine != method {
		return
	}
	out, room := http.Header{}, maxExposed
	for name, values := range h {
		if !e.hasName(name) || httpguts.HeaderValuesContainsToken(h["Connection"], name) {
			continue
		}
		size := 0
		for _, value := range values {
			size += len(name) + len(value)
		}
		if room -= size; room < 0 {
			room += size
			continue
		}
		out[name] = slices.Clone(values)
	}
	e.got.Store(&out)
}

// Header are the headers so far.
func (e *Exposed) Header() http.Header {
	if h := e.got.Load(); h != nil {
		return *h
	}
	return nil
}

// hasName reports whether a header is one of those that clients get.
func (e *Exposed) hasName(name string) bool {
	return slices.ContainsFunc(e.names, func(one string) bool {
		begin, many := strings.CutSuffix(one, "*")
		return one == name || many && strings.HasPrefix(name, begin)
	})
}
