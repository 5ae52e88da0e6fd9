package metrics

import (
	"cmp"
	"sync"

	"taskgate/internal/semconv"
)

// maxNames is how many names of one upstream the metrics of a process tell apart. Each makes series
// of its own, in every process and for good.
const maxNames = 200

// Names has the names of tools and prompts with series of their own. A name in a request is the
// client's text, so it is known only once the configuration has named it, or the server has listed
// it or answered it with success. The zero value is empty.
type Names struct {
	mu    sync.RWMutex
	known map[named]string
	n     map[string]int // how many are known, by upstream
}

// named is a tool (method tools/call) or a prompt (prompts/get) of an upstream.
type named struct{ upstream, method, name string }

// Learn takes names that exist. It keeps the first 200 of an upstream.
func (s *Names) Learn(upstream, method string, names ...string) {
	for _, name := range names {
		k := named{upstream, method, name}
		if _, more := s.find(k); !more || name == "" {
			continue
		}
		s.mu.Lock()
		if s.known == nil {
			s.known, s.n = make(map[named]string), make(map[string]int)
		}
		if _, since := s.known[k]; !since && s.n[upstream] < maxNames {
			s.known[k] = semconv.Cut(name)
			s.n[upstream]++
		}
		s.mu.Unlock()
	}
}

// find returns a known name as a metric has it; "" for an unknown one, and whether there is room for that.
func (s *Names) find(k named) (as string, more bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	as, known := s.known[k]
	return as, !known && s.n[k.upstream] < maxNames
}

// Bound returns a name as a metric has it: "" for "", and semconv.OtherName for an unknown name.
func (s *Names) Bound(upstream, method, name string) string {
	if name == "" {
		return ""
	}
	as, _ := s.find(named{upstream, method, name})
	return cmp.Or(as, semconv.OtherName)
}
