package jsonrpc

import (
	"bytes"
	"regexp"
)

var (
	// idMember finds the id of what may be an answer.
	idMember = regexp.MustCompile(`"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)`)
	// kindMember finds the kind of message that it may be.
	kindMember = regexp.MustCompile(`"(method|result|error)"\s*:`)
)

// maxSpoiltIDs bounds the ids that are looked at in one text.
const maxSpoiltIDs = 64

// ReadSpoilt judges a text of a server that [ParseLenient] refuses. answer says that it was meant as an answer: Python
// writes NaN in one, for example. ids are those that it may answer, as [ParseEchoed] reads them. A text for people has
// neither, and nor has a spoilt request or notification: programs print the requests that they get.
func ReadSpoilt(b []byte) (answer bool, ids []ID) {
	kind := kindMember.FindSubmatch(b)
	named := bytes.Contains(b, []byte(`"jsonrpc"`))
	if kind == nil && !named || kind != nil && string(kind[1]) == "method" {
		return false, nil
	}
	for _, found := range idMember.FindAllSubmatch(b, maxSpoiltIDs) {
		if id, err := ParseEchoed(found[1]); err == nil {
			ids = append(ids, id)
		}
	}
	return kind != nil && named && IsObject(b), ids
}
