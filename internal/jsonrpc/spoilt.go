package jsonrpc

import (
	"bytes"
	"cmp"
	"regexp"
)

// idText is the id that a text begins with.
var idText = regexp.MustCompile(`^("(?:[^"\\]|\\.)*"|-?[0-9]+)`)

// ReadSpoilt judges a text of a server that [ParseLenient] refuses. answer says that it was meant as an answer: Python
// writes NaN in one, for example. id is the request that it may answer, as [ParseEchoed] reads it; zero for none. A text
// for people has neither, and nor has a spoilt request or notification: programs print the requests that they get.
func ReadSpoilt(b []byte) (answer bool, id ID) {
	var kind string
	named, depth := false, 0
	for i := max(bytes.IndexByte(b, '{'), 0); i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			from := i + 1
			for i = from; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if i >= len(b) || depth != 1 {
				continue
			}
			value, isName := bytes.CutPrefix(b[skipSpace(b, i+1):], []byte(":"))
			if !isName {
				continue
			}
			switch name := string(b[from:i]); name {
			case "jsonrpc":
				named = true
			case "method", "result", "error":
				kind = cmp.Or(kind, name)
			case "id":
				id, _ = ParseEchoed(idText.Find(value[skipSpace(value, 0):]))
			}
		}
		if depth <= 0 {
			break
		}
	}
	if kind == "method" || kind == "" && !named {
		return false, ID{}
	}
	return kind != "" && named && IsObject(b), id
}
