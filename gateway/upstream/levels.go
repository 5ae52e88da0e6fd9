package upstream

import (
	"context"
	"errors"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// raiseLevel makes the server at least as talkative as level, where it logs at
// all. A server without a session could only be told for everybody, and is not.
// That this fails costs log messages, never the call; the next call tries again. A server
// that does not answer has no call wait for that again within levelPause.
func (s *session) raiseLevel(ctx context.Context, l *link, level string) {
	want := talk(level)
	if l.id == "" || want <= 0 || !l.server.declares("logging") {
		return
	}
	for !l.settled(want) {
		// What is under way may be a call's that wants less, or that leaves before it is done.
		raised, err := work.Once(ctx, s.t.work, &l.raising, "", func(ctx context.Context) (int, error) {
			s.setLevel(ctx, l, level)
			return want, nil
		})
		if err != nil || raised >= want {
			return
		}
	}
}

// talk is how talkative a server is at a level: larger is more, and 0 is for none.
func talk(level string) int {
	if n := mcp.LogSeverity(level); n >= 0 {
		return len(mcp.LogLevels) - n
	}
	return 0
}

// levelPause is how long a server is not told a level that did not answer to one.
const levelPause = time.Minute

// settled reports whether there is nothing to tell the server, which is to be as talkative
// as this.
func (l *link) settled(want int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.level >= want || time.Now().Before(l.silent)
}

// unheard notes that the server has not answered.
func (l *link) unheard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = time.Now().Add(levelPause)
}

// told notes the level that the server has been told.
func (l *link) told(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.level = talk(level)
}

// setLevel tells the server a log level, if there is one. A server that does not know it is
// not told again.
func (s *session) setLevel(ctx context.Context, l *link, level string) {
	if level == "" {
		return
	}
	err := s.order(ctx, l, mcp.MethodSetLevel, "level", level)
	rpc := rpcOf(err)
	if err == nil || rpc != nil && (rpc.Code == mcp.CodeMethodNotFound || rpc.Code == mcp.CodeInvalidParams) {
		l.told(level)
	} else if errors.Is(err, errSlow) {
		l.unheard()
	}
}

// noteLevel remembers the level that the client has set, for the next generation.
func (s *session) noteLevel(ctx context.Context, l *link, level string) {
	l.told(level)
	s.mu.Lock()
	s.level = level
	s.mu.Unlock()
	if s.shared.Load() {
		s.t.shares.noteLevel(ctx, s.key.key, level)
	}
}

// command is order, and reports whether the server agreed.
func (s *session) command(ctx context.Context, l *link, method, name, value string) bool {
	return s.order(ctx, l, method, name, value) == nil
}

// order sends a request of the gateway's own with one argument. That the server does not do
// it costs messages or updates, never a call.
func (s *session) order(ctx context.Context, l *link, method, name, value string) error {
	ctx, cancel := s.t.wire.slow(ctx)
	defer cancel()
	params := append(jsonrpc.AppendString(nil, name), ':')
	params = jsonrpc.Extend([]byte("{}"), jsonrpc.AppendString(params, value))
	m, err := s.exchange(l.target(), shim.Request{Method: method, Params: params}, discard{}).run(ctx)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	if err != nil {
		s.t.wire.log.Debug("the server did not do as the gateway asked", "method", method, "err", err)
	}
	return err
}
