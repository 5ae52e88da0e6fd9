package metrics

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// sets has sets of attributes by their content. Each is made once, because to sort and hash one
// costs more than to measure. The zero value is empty.
type sets[K comparable] struct {
	mu   sync.RWMutex
	made map[K]set
}

// set is a set of attributes in the forms in which instruments take it.
type set struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

// of returns the set of a key. Sets beyond mostSets are made each time.
func (s *sets[K]) of(k K, attributes func(K) []attribute.KeyValue) set {
	s.mu.RLock()
	have, ok := s.made[k]
	s.mu.RUnlock()
	if ok {
		return have
	}
	as := metric.WithAttributeSet(attribute.NewSet(attributes(k)...))
	have = set{record: []metric.RecordOption{as}, add: []metric.AddOption{as}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made == nil {
		s.made = make(map[K]set)
	}
	if len(s.made) < mostSets {
		s.made[k] = have
	}
	return have
}
