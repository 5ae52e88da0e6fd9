package redistest

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"taskgate/internal/memconn"
)

// Memory is a Redis in the process of the test, reached over pipes in memory. It counts
// time by time.Now, also in a synctest bubble, and can go back to a snapshot of its
// content, as a Redis does that is killed and starts again from its disk.
type Memory struct {
	mu     sync.Mutex
	server *miniredis.Miniredis
}

// NewMemory starts an empty one. Close ends it.
func NewMemory() *Memory { return &Memory{server: newServer()} }

func newServer() *miniredis.Miniredis {
	s := miniredis.NewMiniRedis()
	s.ClockTTL(true)
	return s
}

// Close ends it and all connections.
func (m *Memory) Close() { m.current().Close() }

func (m *Memory) current() *miniredis.Miniredis {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.server
}

// Content is what a Memory had at one moment.
type Content struct {
	// Hashes are those of its keys that are hashes.
	Hashes map[string]map[string]string

	strings map[string]string
	lists   map[string][]string
	sets    map[string][]string
	sorted  map[string]map[string]float64
	expires map[string]time.Time
}

// Keys lists the keys.
func (c Content) Keys() []string {
	keys := slices.Collect(maps.Keys(c.Hashes))
	for key := range c.strings {
		keys = append(keys, key)
	}
	for key := range c.lists {
		keys = append(keys, key)
	}
	for key := range c.sets {
		keys = append(keys, key)
	}
	for key := range c.sorted {
		keys = append(keys, key)
	}
	return keys
}

// Snapshot reads everything that is stored.
func (m *Memory) Snapshot() Content {
	s := m.current()
	c := Content{
		Hashes: map[string]map[string]string{}, strings: map[string]string{}, lists: map[string][]string{},
		sets: map[string][]string{}, sorted: map[string]map[string]float64{}, expires: map[string]time.Time{},
	}
	for _, key := range s.Keys() {
		var err error
		switch s.Type(key) {
		case "hash":
			c.Hashes[key], err = hash(s, key)
		case "list":
			c.lists[key], err = s.List(key)
			c.lists[key] = slices.Clone(c.lists[key]) // what is returned goes on changing
		case "set":
			c.sets[key], err = s.Members(key)
		case "zset":
			c.sorted[key], err = s.SortedSet(key)
			c.sorted[key] = maps.Clone(c.sorted[key])
		case "string":
			c.strings[key], err = s.Get(key)
		}
		if ttl := s.TTL(key); ttl > 0 && err == nil {
			c.expires[key] = time.Now().Add(ttl)
		}
	}
	return c
}

func hash(s *miniredis.Miniredis, key string) (map[string]string, error) {
	fields, err := s.HKeys(key)
	if err != nil {
		return nil, err
	}
	h := make(map[string]string, len(fields))
	for _, f := range fields {
		h[f] = s.HGet(key, f)
	}
	return h, nil
}

// Restore starts another server in place of this one, with the content of a snapshot:
// all connections break, and scripts and subscriptions are gone.
func (m *Memory) Restore(c Content) error {
	next := newServer()
	var errs []error
	for key, fields := range c.Hashes {
		for f, v := range fields {
			next.HSet(key, f, v)
		}
	}
	for key, v := range c.strings {
		errs = append(errs, next.Set(key, v))
	}
	for key, v := range c.lists {
		_, err := next.Push(key, v...)
		errs = append(errs, err)
	}
	for key, v := range c.sets {
		_, err := next.SAdd(key, v...)
		errs = append(errs, err)
	}
	for key, scores := range c.sorted {
		for member, score := range scores {
			_, err := next.ZAdd(key, score, member)
			errs = append(errs, err)
		}
	}
	for key, at := range c.expires {
		if ttl := time.Until(at); ttl > 0 {
			next.SetTTL(key, ttl)
		} else {
			next.Del(key)
		}
	}
	m.mu.Lock()
	m.server, next = next, m.server
	m.mu.Unlock()
	next.Close()
	return errors.Join(errs...)
}

// Refuse answers every script, and every SET, with an error from now on, as a Redis does that is full (OOM) or has become
// a replica (READONLY). "" ends that. What a script does that has begun is done.
func (m *Memory) Refuse(answer string) {
	var refuse server.Hook
	if answer != "" {
		refuse = func(p *server.Peer, cmd string, _ ...string) bool {
			writes := cmd == "EVAL" || cmd == "EVALSHA" || cmd == "SET"
			if writes {
				p.WriteError(answer)
			}
			return writes
		}
	}
	if s := m.current().Server(); s != nil {
		s.SetPreHook(refuse)
	}
}

// Dial connects to it. It is a dialer for clients of Redis.
func (m *Memory) Dial(context.Context, string, string) (net.Conn, error) {
	m.mu.Lock() // or it connects to the server that Restore has just closed, which begins anew then
	c, err := m.server.Dial()
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return memconn.New(c), nil
}
