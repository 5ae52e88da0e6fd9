package duplex

import (
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// takeSpoilt fails the request of an unreadable answer, which would wait for ever, and spares the others. It reports
// false for what is no answer.
func (s *server) takeSpoilt(said []byte, why error) bool {
	answer, id := jsonrpc.ReadSpoilt(said)
	s.mu.Lock()
	st := s.asked[id.Key()] // nil for an answer to a request that has left
	if answer && id.IsZero() {
		st = s.blamedRequest() // fast-mcp answers notifications, without an id (fast-mcp #36)
	}
	if st == nil {
		s.mu.Unlock()
		return answer
	}
	delete(s.asked, st.m.ID.Key())
	s.startIdleTimer()
	s.mu.Unlock()
	st.endStream(&shim.UpstreamError{Kind: shim.KindProtocol, Message: "the server sent an answer that is no JSON-RPC message", Err: why})
	if st.m.Method == mcp.MethodInitialize { // the outcome of the handshake stays unknown
		s.quitServer()
	}
	return true
}
