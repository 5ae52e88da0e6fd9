package sealed

import (
	"crypto/sha256"
	"encoding/json"

	"taskgate/internal/jsonrpc"
)

// Digest is the digest of some JSON values, in order; nil stands for an absent one. A client writes
// its request anew for the second try, so values are compared by their meaning: blanks, the order
// of members and the spelling of strings do not count. Numbers count as they are spelt, since
// readers differ on 1.0 beside 1, and on a number of twenty digits.
//
// The values must have passed jsonrpc.Parse.
func Digest(values ...json.RawMessage) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, v := range values {
		if v == nil {
			h.Write([]byte("-")) // different from every value
		} else {
			_ = jsonrpc.WriteCanonical(h, v) // a hash takes everything
		}
		h.Write([]byte("\n"))
	}
	h.Sum(sum[:0])
	return sum
}
