package jsonrpc

import "encoding/json"

// Spliced is a JSON text in pieces, which are to be written one after the other. It is how a
// large text is edited and sent without being copied. The pieces alias the texts that they
// were taken from.
type Spliced [][]byte

// Len is the length of the text in bytes.
func (s Spliced) Len() int {
	n := 0
	for _, piece := range s {
		n += len(piece)
	}
	return n
}

// Text is the text in one piece. It is a copy, unless there is only one piece.
func (s Spliced) Text() json.RawMessage {
	if len(s) == 1 {
		return s[0]
	}
	out := make([]byte, 0, s.Len())
	for _, piece := range s {
		out = append(out, piece...)
	}
	return out
}

var comma, closing = []byte{','}, []byte{'}'}

// SpliceResult is the successful answer to id; see [AppendResult].
func SpliceResult(id ID, result Spliced) Spliced {
	head := append(appendID(append(make([]byte, 0, 64), prefix...), id), `,"result":`...)
	if result.Len() == 0 {
		head = append(head, '{', '}')
	}
	return append(append(append(make(Spliced, 0, len(result)+2), head), result...), closing)
}

// Splice is obj with each member's value replaced by what f returns for it, as in [Edit],
// and with further members, a text like "a":1,"b":2, after its last one. What they are, more
// says at the end; that obj has none of them is for it to know. What is no object is returned
// as it is. It is one walk and no copy.
func Splice(obj []byte, f func(name string, value json.RawMessage) json.RawMessage, more func() []byte) Spliced {
	out, _, ok := edit(make(Spliced, 0, 8), obj, decoded(f), more)
	if !ok {
		return Spliced{obj}
	}
	return out
}

// decoded is f for names that are still quoted.
func decoded(f func(string, json.RawMessage) json.RawMessage) func([]byte, json.RawMessage) json.RawMessage {
	return func(name []byte, value json.RawMessage) json.RawMessage { return f(unquote(name), value) }
}

// Extended is obj with members, a text like "a":1,"b":2, after its last one. That obj has none
// of them already is for the caller to know: it looks only at the end of obj. What is no
// object, or no members at all, is returned as it is.
func Extended(obj, members []byte) Spliced {
	at, empty, ok := lastMember(obj)
	switch {
	case !ok || len(members) == 0:
		return Spliced{obj}
	case empty:
		return Spliced{obj[:at], members, obj[at:]}
	}
	return Spliced{obj[:at], comma, members, obj[at:]}
}
