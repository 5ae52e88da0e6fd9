package jsonrpc

import (
	"bytes"
	"encoding/json"
)

// Spliced is a JSON text in pieces, which are to be written one after the other. So a large text is
// edited and sent uncopied. The pieces alias the texts that they were taken from.
type Spliced [][]byte

// Len returns the length of the text in bytes.
func (s Spliced) Len() int {
	n := 0
	for _, piece := range s {
		n += len(piece)
	}
	return n
}

// Text returns the text in one piece. It is a copy, unless there is only one piece.
func (s Spliced) Text() json.RawMessage {
	if len(s) == 1 {
		return s[0]
	}
	return bytes.Join(s, nil)
}

var comma, closing = []byte{','}, []byte{'}'}

// SpliceResult returns the successful answer to id; see [AppendResult].
func SpliceResult(id ID, result Spliced) Spliced {
	head := append(appendID(append(make([]byte, 0, 64), prefix...), id), `,"result":`...)
	if result.Len() == 0 {
		head = append(head, '{', '}')
	}
	return append(append(append(make(Spliced, 0, len(result)+2), head), result...), closing)
}

// Extended returns obj with members, a text like "a":1,"b":2, after its last one. It looks only at
// the end of obj, so the caller ensures that obj lacks the new names. If obj is not an object, or
// members is empty, it returns obj as it is.
func Extended(obj, members []byte) Spliced {
	end := bytes.LastIndexByte(obj, '}')
	if end < 0 || !IsObject(obj) || len(members) == 0 {
		return Spliced{obj}
	}
	at := len(bytes.TrimRight(obj[:end], " \t\r\n"))
	if obj[at-1] == '{' {
		return Spliced{obj[:at], members, obj[at:]}
	}
	return Spliced{obj[:at], comma, members, obj[at:]}
}
