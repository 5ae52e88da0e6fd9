package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"taskgate/internal/semconv"
)

// maxNames is how many names of one upstream the metrics of a process tell apart. Each makes series
// of its own, in every process and for good.
const maxNames = 200

// Names has the names of tools and prompts with series of their own. A name in a request is the
// client's text, so it is known only once the configuration has named it, or the server has listed
// it or answered it with success. The zero value is empty.
type Names struct {
	known atomic.Pointer[map[named]string] // replaced as a whole, because calls read it unlocked

	mu sync.Mutex // held while it is replaced
	n  map[string]int
}

// named is a tool (method tools/call) or a prompt (prompts/get) of an upstream.
type named struct{ upstream, method, name string }

// Learn takes names that exist. It keeps the first 200 of an upstream.
func (s *Names) Learn(upstream, method string, names ...string) {
	if s.all(upstream, method, names) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = make(map[string]int)
	}
	known := make(map[named]string)
	if old := s.known.Load(); old != nil {
		maps.Copy(known, *old)
	}
	for _, name := range names {
		k := named{upstream, method, name}
		if _, ok := known[k]; ok || name == "" || s.n[upstream] >= maxNames {
			continue
		}
		known[k] = semconv.Cut(name)
		s.n[upstream]++
	}
	s.known.Store(&known)
}

// all reports whether Learn would change nothing.
func (s *Names) all(upstream, method string, names []string) bool {
	known := s.known.Load()
	if known == nil {
		return false
	}
	for _, name := range names {
		if _, ok := (*known)[named{upstream, method, name}]; !ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.n[upstream] >= maxNames
		}
	}
	return true
}

// Bound returns a name as a metric has it: "" for "", and semconv.OtherName for an unknown name.
func (s *Names) Bound(upstream, method, name string) string {
	if name == "" {
		return ""
	}
	if known := s.known.Load(); known != nil {
		if as, ok := (*known)[named{upstream, method, name}]; ok {
			return as
		}
	}
	return semconv.OtherName
}
