package reading

import (
	"encoding/json"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// TestPlainReplies: a reply is plain only if nothing in it is to be changed for a client.
func TestPlainReplies(t *testing.T) {
	for result, want := range map[string][2]bool{
		`{"content":[{"_meta":{},"resultType":"x"}]}`:    {true, false},
		`{"resultType":"complete","isError":true}`:       {true, true},
		`{"resultType":"complete","_meta":{}}`:           {false, true},
		`{"requestState":"s"}`:                           {false, false},
		`{"resultType":"input_required"}`:                {false, true},
		`{"resultType":null}`:                            {false, false},
		`{"resultType":"task","resultType":"complete"}`:  {true, true},
		`{"resultType":"complete","\u005fmeta":{"a":1}}`: {false, true},
	} {
		reply, err := ReadAnswer(jsonrpc.Message{Kind: jsonrpc.Result, Result: json.RawMessage(result)}).readReply(mcp.MethodToolsCall)
		if got := [2]bool{reply.Plain, reply.Typed}; err != nil || got != want {
			t.Errorf("%s: plain, typed %v, want %v (%v)", result, got, want, err)
		}
	}
}
