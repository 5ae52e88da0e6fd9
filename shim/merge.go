package shim

import (
	"encoding/json"
	"strings"

	"taskgate/internal/jsonrpc"
)

// merge makes the result of a call that streamed (protocol.md 6.4.4): its content
// is exactly all segments in order. Those that were streamed come first, then what
// the server's own result adds to them, which is returned as well. All other fields
// are the server's, byte for byte; and so is the whole result if nothing had been
// streamed before.
func merge(result json.RawMessage, streamed []json.RawMessage) (merged json.RawMessage, added []json.RawMessage) {
	added = rest(streamed, blocksOf(result))
	if len(streamed) == 0 {
		return result, added
	}
	out, err := jsonrpc.Set(result, arrayOf(append(streamed[:len(streamed):len(streamed)], added...)), "content")
	if err != nil {
		return result, blocksOf(result) // no object: there is nothing to merge with
	}
	return out, added
}

// rest is what a result has besides the text that was streamed: where that is how
// the result's text begins, what follows it, else all of it.
func rest(streamed, blocks []json.RawMessage) []json.RawMessage {
	var said strings.Builder
	for _, b := range streamed {
		text, _ := jsonrpc.GetString(b, "text")
		said.WriteString(text)
	}
	left := said.String()
	for i, b := range blocks {
		if left == "" {
			return blocks[i:]
		}
		kind, _ := jsonrpc.GetString(b, "type")
		text, ok := jsonrpc.GetString(b, "text")
		if kind != "text" || !ok {
			return blocks
		}
		if more, ok := strings.CutPrefix(left, text); ok {
			left = more
			continue
		}
		tail, ok := strings.CutPrefix(text, left)
		if !ok {
			return blocks
		}
		cut, err := jsonrpc.Set(b, jsonrpc.AppendString(nil, tail), "text")
		if err != nil {
			return blocks
		}
		return append([]json.RawMessage{cut}, blocks[i+1:]...)
	}
	if left != "" {
		return blocks
	}
	return nil
}
