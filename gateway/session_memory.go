package gateway

import (
	"context"
	"sync"
)

// What memoryLogs keeps of one session at most.
const (
	memoryMessages = 1000
	memoryBytes    = 4 << 20
)

// memoryLogs are Logs in this process.
type memoryLogs struct {
	mu       sync.Mutex
	sessions map[string]*memoryLog
}

// memoryLog is the log of one session.
type memoryLog struct {
	last    int64
	size    int
	entries []memoryEntry
	streams map[string]memoryStream
	watch   map[*func()]struct{}
}

// memoryStream is what is known of a stream; it is not open once it has ended.
type memoryStream struct {
	open bool
	note []byte
}

type memoryEntry struct {
	no      int64
	stream  string
	message []byte
}

// of returns the log of a session. The lock is held.
func (m *memoryLogs) of(id string) *memoryLog {
	l := m.sessions[id]
	if l == nil {
		l = &memoryLog{streams: map[string]memoryStream{}, watch: map[*func()]struct{}{}}
		m.sessions[id] = l
	}
	return l
}

// forget drops the log of a session that is gone.
func (m *memoryLogs) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, id)
}

// Open implements Logs. A stream's replica cannot be lost without its log.
func (m *memoryLogs) Open(_ context.Context, id, stream string, note []byte) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.of(id)
	l.streams[stream] = memoryStream{open: true, note: note}
	return l.last, nil
}

// Append implements Logs.
func (m *memoryLogs) Append(_ context.Context, id, stream string, message []byte) (int64, error) {
	m.mu.Lock()
	l := m.of(id)
	l.last++
	l.entries = append(l.entries, memoryEntry{l.last, stream, append([]byte(nil), message...)})
	l.size += len(message)
	for len(l.entries) > 1 && (len(l.entries) > memoryMessages || l.size > memoryBytes) {
		l.size -= len(l.entries[0].message)
		l.entries = l.entries[1:]
	}
	no := l.last
	m.mu.Unlock()
	m.wake(id)
	return no, nil
}

// Finish implements Logs.
func (m *memoryLogs) Finish(_ context.Context, id, stream string) error {
	m.mu.Lock()
	if l := m.sessions[id]; l != nil {
		l.streams[stream] = memoryStream{}
	}
	m.mu.Unlock()
	m.wake(id)
	return nil
}

// Leave implements Logs. There is no other replica that could go on.
func (m *memoryLogs) Leave(ctx context.Context, id, stream string) error {
	return m.Finish(ctx, id, stream)
}

// Take implements Logs. A stream's replica cannot be lost without its log.
func (m *memoryLogs) Take(context.Context, string, string, []byte) (taken, fresh bool, err error) {
	return false, false, nil
}

// wake tells those who watch a session.
func (m *memoryLogs) wake(id string) {
	m.mu.Lock()
	var all []*func()
	if l := m.sessions[id]; l != nil {
		for f := range l.watch {
			all = append(all, f)
		}
	}
	m.mu.Unlock()
	for _, f := range all {
		(*f)()
	}
}

// Since implements Logs.
func (m *memoryLogs) Since(_ context.Context, id, stream string, after int64, on func(int64, []byte)) (string, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.sessions[id]
	if l == nil {
		return "", nil, nil
	}
	st, known := l.streams[stream]
	if !known {
		return "", nil, nil
	}
	for _, e := range l.entries {
		if e.stream == stream && e.no > after {
			on(e.no, e.message)
		}
	}
	if st.open {
		return "open", st.note, nil
	}
	return "ended", nil, nil
}

// Watch implements Logs.
func (m *memoryLogs) Watch(ctx context.Context, id string, wake func()) {
	m.mu.Lock()
	m.of(id).watch[&wake] = struct{}{}
	m.mu.Unlock()
	wake()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.sessions[id]; l != nil {
		delete(l.watch, &wake)
	}
}
