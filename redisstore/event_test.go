package redisstore

import (
	"testing"

	"taskgate/shim"
)

// An event is read from what was published. Whatever else is there is left out: the version before put appended pieces
// there.
func TestParseEvent(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]shim.Event{
		"id 7":               {ID: "id", Version: 7},
		"id 7 3 2:{} 4:[ 1]": {ID: "id", Version: 7},
		"id 7 token 3 2:{}":  {ID: "id", Version: 7, Token: "3 2:{}"},
		"id x":               {ID: "id"},
		"id":                 {ID: "id"},
		"":                   {},
	} {
		same(t, want, parseEvent(payload))
	}
}
