package duplex

import (
	"bytes"
	"regexp"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file is about answers that are no JSON: Python writes NaN, for one. Each must fail its
// request, which would wait for ever, and no other.

var (
	// idMember finds the id of what may be an answer.
	idMember = regexp.MustCompile(`"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)`)
	// kindMember finds which kind of message it may be.
	kindMember = regexp.MustCompile(`"(method|result|error)"\s*:`)
)

// isAnswer reports whether what is no JSON was meant to be an answer, and not to be read by people.
func isAnswer(said []byte) bool {
	return bytes.HasPrefix(said, []byte("{")) && bytes.Contains(said, []byte(`"jsonrpc"`)) && kindMember.Match(said)
}

// takeSpoilt fails the request that an unreadable answer belongs to. It reports false for what is no
// answer.
func (s *server) takeSpoilt(said []byte, why error) bool {
	if kind := kindMember.FindSubmatch(said); kind != nil && string(kind[1]) == "method" {
		return false // a request of ours, too, which programs print
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
	if answer && len(ids) == 0 { // else its request has left
		st = s.onlyRequest()
	}
	if st == nil {
		s.mu.Unlock()
		return answer
	}
	delete(s.asked, st.m.ID.Key())
	s.startIdleTimer()
	s.mu.Unlock()
	st.endStream(&shim.UpstreamError{Kind: shim.KindProtocol, Message: "the server sent an answer that is no JSON-RPC message", Err: why})
	if st.m.Method == mcp.MethodInitialize { // whether the handshake succeeded is not known
		s.quitServer()
	}
	return true
}
