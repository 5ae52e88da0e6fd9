package content

import (
	"encoding/json"
	"testing"

	"taskgate/internal/jsonrpc"
)

// What a result adds to what was streamed of it.
func TestMergeAddsTheRest(t *testing.T) {
	for _, c := range []struct{ name, streamed, blocks, added string }{
		{"nothing was streamed", `[]`, `["a",1]`, `["a",1]`},
		{"all of it", `["a","b"]`, `["a","b"]`, `[]`},
		{"in other pieces", `["a","bc","d"]`, `["ab","cd"]`, `[]`},
		{"but the end", `["a","b"]`, `["abc","d"]`, `["c","d"]`},
		{"blocks of other kinds", `["a",1,"b",2]`, `["a",1,"b",2]`, `[]`},
		{"and some more", `["a",1,"b"]`, `["a",1,"bc",2]`, `["c",2]`},
		{"texts in other pieces around one", `["a","b",1,"c"]`, `["ab",1,"c",2]`, `[2]`},
		{"another one", `["a",1]`, `["a",2]`, `["a",2]`},
		{"one amid a text", `["a",1]`, `["ab",1]`, `["ab",1]`},
		{"more than there is", `["a","b"]`, `["a"]`, `["a"]`},
		{"other text", `["x"]`, `["a"]`, `["a"]`},
	} {
		_, added := Merge(json.RawMessage(`{"content":`+inBlocks(t, c.blocks, false)+`}`), split(inBlocks(t, c.streamed, true)))
		if got, want := string(jsonrpc.Array(added)), inBlocks(t, c.added, false); got != want {
			t.Errorf("%s: adds %s, want %s", c.name, got, want)
		}
	}
}

// split takes an array apart.
func split(array string) []json.RawMessage {
	return Blocks(json.RawMessage(`{"content":` + array + `}`))
}

// inBlocks makes blocks: of a string a text, of a number an image, whose members come in the
// other order where that is wanted.
func inBlocks(t *testing.T, short string, turned bool) string {
	var values []any
	if err := json.Unmarshal([]byte(short), &values); err != nil {
		t.Fatal(err)
	}
	var blocks []json.RawMessage
	for _, v := range values {
		switch v := v.(type) {
		case string:
			blocks = append(blocks, Text(v))
		case float64:
			data := `"data":"` + number(v) + `"`
			if turned {
				blocks = append(blocks, json.RawMessage(`{`+data+`, "type":"image"}`))
			} else {
				blocks = append(blocks, json.RawMessage(`{"type":"image",`+data+`}`))
			}
		}
	}
	return string(jsonrpc.Array(blocks))
}
