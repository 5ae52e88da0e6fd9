package duplex

import (
	"bytes"
	"regexp"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file is about answers that are invalid JSON: Python writes NaN, for one. Each must fail its
// own request, which would wait for ever, and spare the others.

var (
	// idMember finds the id of what may be an answer.
	idMember = regexp.MustCompile(`"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)`)
	// kindMember finds the kind of message that it may be.
	kindMember = regexp.MustCompile(`"(method|result|error)"\s*:`)
)

// isAnswer reports whether invalid JSON was meant as an answer; it may be text for people.
func isAnswer(said []byte) bool {
	return bytes.HasPrefix(said, []byte("{")) && bytes.Contains(said, []byte(`"jsonrpc"`)) && kindMember.Match(said)
}

// takeSpoilt fails the request of an unreadable answer. It reports false for anything else.
func (s *server) takeSpoilt(said []byte, why error) bool {
	if kind := kindMember.FindSubmatch(said); kind != nil && string(kind[1]) == "method" {
		return false // it may be a request of ours, which programs print
	}
	answer := isAnswer(bytes.TrimSpace(said))
	s.mu.Lock()
	var st *stream
	ids := idMember.FindAllSubmatch(said, -1)
	for _, found := range ids {
		if st = s.asked[keyOfOwn(found[1])]; st != nil {
			break
		}
	}
	if answer && len(ids) == 0 { // an answer with an id belongs to a request that has left
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
