package jsonrpc

import (
	"encoding/json"
	"unicode/utf8"
)

// maxDepth is how deeply a client's message may nest: far beyond any honest call, and far below
// what could exhaust a stack in a reader behind the gateway. A server's message may nest to
// maxLenientDepth.
const (
	maxDepth        = 1000
	maxLenientDepth = 10_000
)

// walker goes through the members of one object and validates all of it on the way.
type walker struct {
	in     []byte
	strict bool
	at     int    // the next byte of the object that openObject has entered
	top    object // that object
	depth  int
	names  [][]byte // of the objects that it is in, if they must be unique
	reason string   // of the first fault
	// inner has the first members of the latest object that is a value of the outermost one, and members says
	// how many it has.
	inner   [mostNoted]member
	members int
}

// mostNoted is how many members of a payload a message notes. More would cost as much memory as a hostile text
// likes.
const mostNoted = 16

// noteMember notes a member of an inner object.
func (w *walker) noteMember(m member) {
	if w.members < mostNoted {
		w.inner[w.members] = m
	}
	w.members++
}

func newWalker(b []byte, strict bool) *walker {
	return &walker{in: b, strict: strict, names: make([][]byte, 0, fewNames)}
}

// openObject enters the object; what names it in errors.
func (w *walker) openObject(what string) *ParseError {
	if w.strict && !utf8.Valid(w.in) {
		w.failWith(reasonUTF8)
		return w.parseError()
	}
	if w.at = skipSpace(w.in, 0); !w.hasByte(w.at, '{') {
		return w.notObject(what)
	}
	w.at = w.enterNested(w.at)
	return nil
}

// notObject returns the error for a text that is not the needed object: invalid JSON is told from
// another JSON value.
func (w *walker) notObject(what string) *ParseError {
	from := w.at
	if w.at = w.checkValue(from); w.at < 0 {
		return w.parseError()
	}
	if perr := w.checkEnd(); perr != nil {
		return perr
	}
	if w.in[from] == '[' && what == "message" { // 2025-03-26 has batches; no SDK sends them
		return invalid("batches are not supported: send each message by itself")
	}
	return invalid("%s must be an object", what)
}

// nextMember returns the next member, or a nil name after the last one. The value aliases the
// input.
func (w *walker) nextMember() (name []byte, value json.RawMessage, perr *ParseError) {
	var m member
	m, w.at = w.checkMember(&w.top, w.at, true)
	switch {
	case w.at < 0:
		return nil, nil, w.parseError()
	case m.name.to == 0:
		return nil, nil, w.checkEnd()
	}
	name, _ = decodeString(w.in[m.name.from:m.name.to:m.name.to]) // checkMember has refused names with an error
	return name, w.in[m.value.from:m.value.to:m.value.to], nil
}

// checkEnd checks that only blanks follow.
func (w *walker) checkEnd() *ParseError {
	if skipSpace(w.in, w.at) == len(w.in) {
		return nil
	}
	w.failWith(reasonMore)
	return w.parseError()
}

// parseError is the error for the fault that was found.
func (w *walker) parseError() *ParseError {
	return &ParseError{Code: CodeParseError, Reason: w.reason}
}
