package upstream

import (
	"context"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// setLevel tells the server the log level that the client has set, if there is one.
func (s *session) setLevel(ctx context.Context, l *link, level string) {
	if level != "" {
		s.command(ctx, l, mcp.MethodSetLevel, "level", level)
	}
}

// noteLevel remembers the level that the client has set, for the next generation.
func (s *session) noteLevel(ctx context.Context, level string) {
	s.mu.Lock()
	s.level = level
	s.mu.Unlock()
	if s.shared.Load() {
		s.t.shares.change(ctx, s.key.key, func(st *shared) { st.Level = level })
	}
}

// command sends a request of the gateway's own with one argument, and reports whether the
// server agreed. A server that does not do it costs messages or updates, never a call.
func (s *session) command(ctx context.Context, l *link, method, name, value string) bool {
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
	return err == nil
}
