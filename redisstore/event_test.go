package redisstore

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// An event is what was published: bytes that are none are no pieces, and never panic.
func TestParseEvent(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]shim.Added{
		"id 7":                 {},
		"id 7 3 2:{} 4:[ 1]":   {At: 3, Pieces: []json.RawMessage{[]byte("{}"), []byte("[ 1]")}},
		"id 7 3":               {},
		"id 7 3 9:{}":          {},
		"id 7 3 -1:{}":         {},
		"id 7 x 2:{}":          {},
		"id 7 3 2:{} and more": {},
	} {
		got := parseEvent(payload)
		if len(want.Pieces) == 0 {
			got.Added = shim.Added{Pieces: got.Added.Pieces}
		}
		same(t, shim.Event{ID: "id", Version: 7, Added: want}, got)
	}
	same(t, shim.Event{ID: "id", Version: 7, Token: "3 2:{}"}, parseEvent("id 7 token 3 2:{}"))
}

// An append's event has what it added, where that is small, and of a
// repeat only what was not there.
func TestEventsCarryPieces(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, url, testOptions())
			task := create(t, s, newTask())
			next := watching(t, s.Watch(t.Context(), task.ID))
			appends := func(at shim.Position, b ...shim.Batch) shim.Added {
				t.Helper()
				must(t, s.Append(t.Context(), task.ID, held, at, nil, b...))
				return next().Added
			}
			batch := func(text string) shim.Batch { return shim.Batch{Content: json.RawMessage(text)} }
			small := []shim.Batch{batch(`["a"]`), batch("[\"b\",\n1]")}
			pieces := []json.RawMessage{small[0].Content, small[1].Content}
			same(t, shim.Added{Pieces: pieces}, appends(0, small...))
			third := batch(`["c"]`)
			same(t, shim.Added{At: 2, Pieces: []json.RawMessage{third.Content}},
				appends(0, append(slices.Clone(small), third)...))
			same(t, shim.Added{}, appends(3, batch(`["`+strings.Repeat("x", maxShown)+`"]`)))
		})
	}
}
