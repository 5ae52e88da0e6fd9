package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// initializeServer opens a legacy session. introduceClient completes it.
func (s *session) initializeServer(ctx context.Context) (*generation, error) {
	ctx, cancel := s.t.wire.slowContext(ctx)
	defer cancel()
	x, err := s.askToInitialize(ctx, mcp.Version20251125)
	if older := olderVersion(err); older != "" {
		x, err = s.askToInitialize(ctx, older)
	}
	if err != nil {
		return nil, notLegacy(err)
	}
	l := &generation{target: target{era: mcp.Legacy, session: x.head.Session, cookie: x.head.Cookie, opened: true}, born: x.begun}
	if err := l.readAnswer(x.answer.Result); err != nil {
		s.t.discardGeneration(ctx, l)
		return nil, err
	}
	s.t.memory.noteServer(ctx, s.from, l.server)
	return l, nil
}

// askToInitialize asks for a session of a version. The error may be a *jsonrpc.Error.
func (s *session) askToInitialize(ctx context.Context, version string) (*exchange, error) {
	x := s.newExchange(target{era: mcp.Legacy}, shim.Request{
		Method: mcp.MethodInitialize, Params: s.initializeParams(version), Session: s.from,
	}, nil)
	x.uncancelled = true
	m, err := x.runRequest(ctx)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return x, err
}

// olderVersion returns the newest older version that a server names as it refuses initialize, in the message or the data
// of its error; "" if it names none. A server should answer with a version that it has, but some refuse instead (cl-mcp
// #26, cpp-mcp #10, OpenMausBot PR 517).
func olderVersion(refused error) string {
	rpc, _ := refused.(*jsonrpc.Error)
	if se, ok := refused.(*transport.StatusError); ok {
		rpc = se.Answer()
	}
	if rpc == nil {
		return ""
	}
	for _, v := range mcp.NamesOf(mcp.Legacy) {
		if v != mcp.Version20251125 && (strings.Contains(rpc.Message, v) || bytes.Contains(rpc.Data, []byte(v))) {
			return v
		}
	}
	return ""
}

// mayTalk reports whether the server may say something to its client outside of any call.
func (l *generation) mayTalk(client shim.Session) bool {
	return hasRoots(client) || l.server.hasCapability("logging") || l.server.hasCapability("tools", "listChanged") ||
		l.server.hasCapability("prompts", "listChanged") || l.server.hasCapability("resources", "listChanged")
}

// introduceClient tells the server, once in a generation, that its client is ready: the client has
// said so, or has sent a request. The server may now ask it, and many do so at once, or say what has changed. So the
// stream for that is open before.
func (l *generation) introduceClient(ctx context.Context, s *session) error {
	if l.ready.Load() {
		return nil
	}
	_, err := work.Once(ctx, s.t.work, &s.opening, fmt.Sprintf("introduce %p", l), func(ctx context.Context) (struct{}, error) {
		common := s.shared.Load()
		if l.ready.Load() || common && s.t.isIntroduced(ctx, s.key.key, l.gen) {
			l.ready.Store(true)
			return struct{}{}, nil
		}
		s.readyAt.Store(time.Now().UnixNano())
		if s.from.Shared && l.mayTalk(s.from) {
			if opened := s.get.needStream(ctx); opened != nil {
				defer s.get.doneStream()
				s.get.awaitStream(ctx, opened)
			}
		}
		if err := s.t.wire.tellSoon(ctx, l.target, jsonrpc.AppendNotification(nil, mcp.NotifyInitialized, nil)); err != nil {
			return struct{}{}, handshakeError(err)
		}
		l.ready.Store(true)
		s.mu.Lock()
		level := s.level
		s.mu.Unlock()
		first := !common || s.t.changeShared(ctx, s.key.key, func(st *shared) { level, st.Ready = st.Level, st.Ready || st.Generation == l.gen })
		if first && level != "" {
			s.sendCommand(ctx, l, mcp.MethodSetLevel, "level", level)
		}
		return struct{}{}, nil
	})
	return err
}

func (s *session) initializeParams(version string) json.RawMessage {
	info := s.from.ClientInfo
	if all := s.info.Load(); all != nil {
		info = *all
	}
	b := append([]byte(nil), `{"protocolVersion":"`+version+`","capabilities":`...)
	b = append(b, reading.DeclaredCapabilities(s.from.Capabilities)...)
	b = append(b, `,"clientInfo":`...)
	b = append(b, s.t.wire.cfg.clientInfo(info)...)
	return append(b, '}')
}

// readAnswer takes over the server's answer.
func (l *generation) readAnswer(result json.RawMessage) error {
	v, _ := jsonrpc.GetString(result, "protocolVersion")
	if mcp.EraOf(v) != mcp.Legacy {
		return protocolError("the server wants "+versionName(v)+", which the gateway does not speak to it", nil)
	}
	l.version, l.server = v, serverOf(mcp.Legacy, v, result, "serverInfo")
	return nil
}

// versionName is a version for the eyes of a client. A text of another form is the server's own, and
// stays out.
func versionName(v string) string {
	if _, err := time.Parse(time.DateOnly, v); err != nil {
		return "a protocol version"
	}
	return "protocol version " + v
}

// notLegacy explains why initialize failed. By then the transport has looked whether the server is
// one of HTTP+SSE.
func notLegacy(err error) error {
	if contradictsLegacy(err) {
		return err
	}
	se, ok := err.(*transport.StatusError)
	if !ok || se.Status != http.StatusBadRequest && se.Status != http.StatusNotFound && se.Status != http.StatusMethodNotAllowed {
		return handshakeError(err)
	}
	if se.Said != nil {
		return refusedSession(se.Said, err)
	}
	return protocolError(fmt.Sprintf("there is no MCP endpoint at the configured address: initialize was answered with HTTP status %d", se.Status), err)
}

// refusedSession is the error of a handshake that the server refuses in words of its own.
func refusedSession(rpc *jsonrpc.Error, err error) error {
	ue := protocolError(fmt.Sprintf("the server refused to open a session (error %d)", rpc.Code), err)
	ue.Said = rpc.Message
	return ue
}

// handshakeError words the failure of a handshake for clients.
func handshakeError(err error) error {
	if _, worded := err.(*shim.UpstreamError); worded {
		return err
	}
	rpc, _ := err.(*jsonrpc.Error)
	se, status := err.(*transport.StatusError)
	if status {
		rpc = se.Answer()
	}
	busy, full := errors.AsType[*shim.BusyError](err)
	switch {
	case rpc != nil:
		return refusedSession(rpc, err)
	case status, errors.Is(err, errSlow):
		return err
	case full:
		return busy // a Transport is full
	}
	return netError(err, true)
}

// lowerLevel has a server say what a caller of this level wants to hear: before it is set a level, it may say nothing.
// Callers that share the session get what the least severe of their levels lets through, and each hears its own part (heardLog).
func (l *generation) lowerLevel(ctx context.Context, s *session, level string) {
	wanted := mcp.LogSeverity(level)
	if wanted < 0 || !l.server.hasCapability("logging") {
		return
	}
	suffices := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.level != "" && mcp.LogSeverity(s.level) <= wanted
	}
	for agreed := true; agreed && !suffices(); {
		// Whoever finds another level on its way looks again after it.
		agreed, _ = work.Once(ctx, s.t.work, &s.opening, mcp.MethodSetLevel, func(ctx context.Context) (bool, error) {
			if suffices() {
				return true, nil
			}
			agreed := s.sendCommand(ctx, l, mcp.MethodSetLevel, "level", level)
			if agreed {
				s.noteLevel(ctx, level)
			}
			return agreed, nil
		})
	}
}

// noteLevel remembers the level of the session, for the next generation.
func (s *session) noteLevel(ctx context.Context, level string) {
	s.mu.Lock()
	s.level = level
	s.mu.Unlock()
	if s.shared.Load() {
		s.t.changeShared(ctx, s.key.key, func(st *shared) { st.Level = level })
	}
}

// sendCommand sends a request of the gateway's own with one argument, and reports whether the server
// agreed. A refusal costs messages or updates, never a call.
func (s *session) sendCommand(ctx context.Context, l *generation, method, name, value string) bool {
	ctx, cancel := s.t.wire.slowContext(ctx)
	defer cancel()
	params := jsonrpc.With(json.RawMessage("{}"), jsonrpc.AppendString(nil, value), name)
	m, err := s.newExchange(l.target, shim.Request{Method: method, Params: params}, nil).runRequest(ctx)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	if err != nil {
		s.t.wire.log.Debug("the server did not do as the gateway asked", "method", method, "err", err)
	}
	return err == nil
}
