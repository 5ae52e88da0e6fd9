package content

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"taskgate/internal/jsonrpc"
)

// Merge makes the result of a call that streamed (protocol.md 6.4.4): its content is exactly all
// segments in order. The streamed ones come first, then those that the server's own result adds, which
// are returned as well. All other fields are the server's, byte for byte; and so is the whole result if
// the call streamed nothing.
func Merge(result json.RawMessage, streamed []json.RawMessage) (merged json.RawMessage, added []json.RawMessage) {
	added = rest(streamed, Blocks(result))
	if len(streamed) == 0 {
		return result, added
	}
	out, err := jsonrpc.Set(result, jsonrpc.Array(append(streamed[:len(streamed):len(streamed)], added...)), "content")
	if err != nil {
		return result, Blocks(result) // not an object, so nothing is merged
	}
	return out, added
}

// rest returns the blocks that a result adds to the streamed ones: if the result begins with those, the
// blocks after them, else all. Texts are compared as one text, however they are cut into blocks; any
// other block has to be the same.
func rest(streamed, blocks []json.RawMessage) []json.RawMessage {
	at := reader{blocks: blocks}
	for _, b := range streamed {
		text, ok := textOf(b)
		if ok && at.says(text) || !ok && at.has(b) {
			continue
		}
		return blocks
	}
	return at.left()
}

// textOf returns the text of a text block.
func textOf(b json.RawMessage) (string, bool) {
	kind, _ := jsonrpc.GetString(b, "type")
	text, ok := jsonrpc.GetString(b, "text")
	return text, ok && kind == "text"
}

// reader goes through the blocks of a result.
type reader struct {
	blocks []json.RawMessage
	said   int // bytes of the first block's text that are read already
}

// says reports whether the blocks go on with this text, and moves past it.
func (r *reader) says(text string) bool {
	for text != "" {
		if len(r.blocks) == 0 {
			return false
		}
		whole, ok := textOf(r.blocks[0])
		if !ok {
			return false
		}
		ahead := whole[r.said:]
		if len(text) < len(ahead) && strings.HasPrefix(ahead, text) {
			r.said += len(text)
			return true
		}
		if text, ok = strings.CutPrefix(text, ahead); !ok {
			return false
		}
		r.blocks, r.said = r.blocks[1:], 0
	}
	return true
}

// has reports whether the next block is this one, and moves past it.
func (r *reader) has(block json.RawMessage) bool {
	if len(r.blocks) == 0 || r.said > 0 || !sameJSON(r.blocks[0], block) {
		return false
	}
	r.blocks = r.blocks[1:]
	return true
}

// left returns the blocks that are still unread, beginning with the rest of a partly read one.
func (r *reader) left() []json.RawMessage {
	if r.said == 0 {
		return r.blocks
	}
	whole, _ := textOf(r.blocks[0])
	cut, err := jsonrpc.Set(r.blocks[0], jsonrpc.AppendString(nil, whole[r.said:]), "text")
	if err != nil {
		return r.blocks
	}
	return append([]json.RawMessage{cut}, r.blocks[1:]...)
}

// sameJSON compares two values, however they are spelt.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := valueOf(a)
	y, errY := valueOf(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// valueOf reads a value and keeps the spelling of its numbers.
func valueOf(v json.RawMessage) (out any, err error) {
	d := json.NewDecoder(bytes.NewReader(v))
	d.UseNumber()
	err = d.Decode(&out)
	return out, err
}
