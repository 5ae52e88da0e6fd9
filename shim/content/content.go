// Package content makes and reads the content blocks of results (protocol.md 6.4). Its input is a
// server's messages during a call, and its result; its output is blocks, as JSON. A block is the same
// in every dialect, and the package keeps no state.
package content

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"taskgate/internal/jsonrpc"
)

// Keys of a block's _meta that name the origin of the block.
const (
	metaProgress = "dev.taskgate/progress"
	metaLeftOut  = "dev.taskgate/leftOut"
)

// Text makes a text block.
func Text(text string) json.RawMessage { return textWith(text, "", nil) }

// textWith makes a text block with at most one member of _meta.
func textWith(text, meta string, value []byte) json.RawMessage {
	b := append(make([]byte, 0, 64+len(text)+len(value)), `{"type":"text","text":`...)
	b = jsonrpc.AppendString(b, text)
	if value != nil {
		b = append(b, `,"_meta":{`...)
		b = jsonrpc.AppendString(b, meta)
		b = append(append(append(b, ':'), value...), '}')
	}
	return append(b, '}')
}

// Progress makes the hint of a progress notification: its message, else its numbers, which are in _meta
// then as well. A total of 0 is unknown.
func Progress(message string, progress, total float64) json.RawMessage {
	if message != "" {
		return Text(message)
	}
	value := append([]byte(`{"progress":`), number(progress)...)
	if total > 0 {
		value = append(append(value, `,"total":`...), number(total)...)
	}
	return textWith(Numbers(progress, total), metaProgress, append(value, '}'))
}

// Numbers spells progress that has only numbers: n/total, or n.
func Numbers(progress, total float64) string {
	if total > 0 {
		return number(progress) + "/" + number(total)
	}
	return number(progress)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// LeftOut makes the block that tells the reader of missing pieces: how many, or 0 for all that come
// from here on.
func LeftOut(n int, why string) json.RawMessage {
	if n == 0 {
		return textWith("[further partial results are left out: "+why+"]", metaLeftOut, []byte(`{}`))
	}
	return textWith(fmt.Sprintf("[%d partial results are left out: %s]", n, why), metaLeftOut, fmt.Appendf(nil, `{"count":%d}`, n))
}

// IsLeftOut reports whether LeftOut made a block.
func IsLeftOut(block json.RawMessage) bool {
	_, ok := jsonrpc.Get(block, "_meta", metaLeftOut)
	return ok
}

// Blocks returns the content blocks of a result.
func Blocks(result json.RawMessage) []json.RawMessage {
	content, _ := jsonrpc.Get(result, "content")
	return slices.Collect(jsonrpc.Elements(content))
}
