package sealed

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"

	"taskgate/internal/jsonrpc"
)

// Digest is the digest of some JSON values, in order; nil stands for an absent one. A client writes
// its request anew for the second try, so values are compared by their meaning: blanks, the order
// of members and the spelling of strings do not count. Numbers count as they are spelt, since
// readers differ on 1.0 beside 1, and on a number of twenty digits.
//
// The values must have passed jsonrpc.Parse.
func Digest(values ...json.RawMessage) [sha256.Size]byte {
	var b []byte
	for _, v := range values {
		if v == nil {
			b = append(b, '-') // different from every value
		} else {
			b = canonical(b, v)
		}
		b = append(b, '\n')
	}
	return sha256.Sum256(b)
}

// canonical appends a value in its one spelling.
func canonical(b []byte, v json.RawMessage) []byte {
	v, _ = jsonrpc.Get(v) // without blanks
	switch {
	case jsonrpc.IsObject(v):
		return canonicalObject(b, v)
	case len(v) > 0 && v[0] == '[':
		b = append(b, '[')
		for e := range jsonrpc.Elements(v) {
			b = append(canonical(b, e), ',')
		}
		return append(b, ']')
	}
	if s, ok := jsonrpc.GetString(v); ok {
		return jsonrpc.AppendString(b, s)
	}
	return append(b, v...)
}

func canonicalObject(b []byte, v json.RawMessage) []byte {
	members := maps.Collect(jsonrpc.Members(v)) // names differ
	b = append(b, '{')
	for _, name := range slices.Sorted(maps.Keys(members)) {
		b = append(jsonrpc.AppendString(b, name), ':')
		b = append(canonical(b, members[name]), ',')
	}
	return append(b, '}')
}
