package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deeply a client's message may nest: far beyond any honest
// call, far below what could exhaust a stack in a reader behind us.
const maxDepth = 1000

// walker goes through the members of one object and validates all of it on the
// way. It holds a jsontext decoder that reads its input in place.
type walker struct {
	dec    jsontext.Decoder
	buf    bytes.Buffer
	in     []byte
	strict bool
	names  nameSet // names seen so far; only where the decoder does not look
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

var lenientOptions = jsontext.AllowDuplicateNames(true)
var lenientUTF8 = jsontext.AllowInvalidUTF8(true)

func newWalker(b []byte, strict bool) *walker {
	w := walkers.Get().(*walker)
	w.in, w.strict = b, strict
	w.buf = *bytes.NewBuffer(b)
	if strict {
		w.dec.Reset(&w.buf)
	} else {
		w.dec.Reset(&w.buf, lenientOptions, lenientUTF8)
	}
	return w
}

// free gives the walker back without the input, which may be large.
func (w *walker) free() {
	w.in, w.buf = nil, bytes.Buffer{}
	w.dec.Reset(&w.buf)
	w.names.reset()
	walkers.Put(w)
}

// begin enters the object; what names it in errors.
func (w *walker) begin(what string) *ParseError {
	if w.strict && tooDeep(w.in) {
		return &ParseError{Code: CodeParseError, Reason: "nested too deeply"}
	}
	if kind := w.dec.PeekKind(); kind != '{' {
		return w.notObject(what, kind)
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return unreadable(err)
	}
	return nil
}

// notObject tells a text that is no JSON at all from one that is, but is not
// the object that is needed.
func (w *walker) notObject(what string, kind jsontext.Kind) *ParseError {
	if _, err := w.dec.ReadValue(); err != nil {
		return unreadable(err)
	}
	if perr := w.end(); perr != nil {
		return perr
	}
	if kind == '[' && what == "message" { // 2025-03-26 has batches; no SDK sends them
		return invalid("batches are not supported: send each message by itself")
	}
	return invalid("%s must be an object", what)
}

// member returns the next member, or a nil name after the last one. The value
// aliases the input.
func (w *walker) member() (name []byte, value json.RawMessage, perr *ParseError) {
	if name, perr = w.name(); perr != nil || name == nil {
		return nil, nil, perr
	}
	value, perr = w.value()
	return name, value, perr
}

// name returns the name of the next member, or nil after the last one.
func (w *walker) name() (name []byte, perr *ParseError) {
	if w.dec.PeekKind() == '}' {
		if _, err := w.dec.ReadToken(); err != nil {
			return nil, unreadable(err)
		}
		return nil, w.end()
	}
	raw, err := w.dec.ReadValue()
	if err != nil {
		return nil, unreadable(err)
	}
	if !w.strict && !validString(raw) {
		return nil, &ParseError{Code: CodeParseError, Reason: "member name is not valid UTF-8"}
	}
	name, ok := unescaped(raw)
	if !ok {
		name = []byte(unquote(raw))
	}
	// The decoder looks for duplicates either at every depth or nowhere.
	if !w.strict && !w.names.add(name) {
		return nil, &ParseError{Code: CodeParseError, Reason: "duplicate member name in the envelope"}
	}
	return name, nil
}

// value returns the next value. It aliases the input.
func (w *walker) value() (json.RawMessage, *ParseError) {
	v, err := w.dec.ReadValue()
	if err != nil {
		return nil, unreadable(err)
	}
	end := w.dec.InputOffset()
	return json.RawMessage(w.in[end-int64(len(v)) : end : end]), nil
}

// noted is value, with its members if it is an object; nil if there are many.
func (w *walker) noted() (value json.RawMessage, members []Member, perr *ParseError) {
	if w.dec.PeekKind() != '{' {
		value, perr = w.value()
		return value, nil, perr
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return nil, nil, unreadable(err)
	}
	begin := w.dec.InputOffset() - 1
	members = make([]Member, 0, mostMembers)
	for w.dec.PeekKind() != '}' {
		var m Member
		if m.Name, perr = w.value(); perr == nil {
			m.Value, perr = w.value()
		}
		if perr != nil {
			return nil, nil, perr
		}
		if len(members) == mostMembers {
			members = nil
		}
		if members != nil {
			members = append(members, m)
		}
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return nil, nil, unreadable(err)
	}
	end := w.dec.InputOffset()
	return json.RawMessage(w.in[begin:end:end]), members, nil
}

// end checks that nothing but blanks follows.
func (w *walker) end() *ParseError {
	switch _, err := w.dec.ReadToken(); {
	case err == io.EOF:
		return nil
	case err != nil:
		return unreadable(err)
	}
	return &ParseError{Code: CodeParseError, Reason: "more than one JSON value"}
}

// unreadable words a decoder's error without quoting the input, which may be
// secret.
func unreadable(err error) *ParseError {
	reason := "not valid JSON"
	var syn *jsontext.SyntacticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		reason = "duplicate member name"
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF:
		reason = "JSON text ends early"
	case errors.As(err, &syn) && syn.Err != nil && strings.Contains(syn.Err.Error(), "UTF-8"):
		reason = "not valid UTF-8"
	}
	return &ParseError{Code: CodeParseError, Reason: reason}
}

// tooDeep reports whether b nests deeper than maxDepth. The two counts settle
// it for nearly every text at memory speed.
func tooDeep(b []byte) bool {
	if len(b) <= 2*maxDepth || bytes.Count(b, []byte{'{'})+bytes.Count(b, []byte{'['}) <= maxDepth {
		return false
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
			if i < 0 {
				return false // not JSON: the decoder will say so
			}
		case '{', '[':
			if depth++; depth > maxDepth {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// nameSet is a set of member names: a few are compared one by one, without
// allocating; more go into a map, so that a hostile envelope costs linear time.
type nameSet struct {
	few  [12][]byte
	n    int
	many map[string]struct{}
}

// add reports whether name is new. It keeps name.
func (s *nameSet) add(name []byte) bool {
	for _, have := range s.few[:s.n] {
		if string(have) == string(name) {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return true
	}
	if _, have := s.many[string(name)]; have {
		return false
	}
	if s.many == nil {
		s.many = make(map[string]struct{})
	}
	s.many[string(name)] = struct{}{}
	return true
}

func (s *nameSet) reset() { *s = nameSet{} }
