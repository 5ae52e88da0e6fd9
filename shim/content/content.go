package shim

import (
	"encoding/json"
	"fmt"
	"strconv"

	"taskgate/internal/jsonrpc"
)

// This file makes content blocks of what a server says while a call runs
// (protocol.md 6.4.2). A block is the same in every dialect, like the result that
// the shim reads already.

// Keys of a block's _meta that say what the block was made of.
const (
	metaProgress = "dev.taskgate/progress"
	metaLog      = "dev.taskgate/log"
	metaLeftOut  = "dev.taskgate/leftOut"
)

// textBlock is a text with one member of _meta, or none.
func textBlock(text, meta string, value []byte) json.RawMessage {
	b := append(make([]byte, 0, 64+len(text)+len(value)), `{"type":"text","text":`...)
	b = jsonrpc.AppendString(b, text)
	if value != nil {
		b = append(b, `,"_meta":{`...)
		b = jsonrpc.AppendString(b, meta)
		b = append(append(append(b, ':'), value...), '}')
	}
	return append(b, '}')
}

// progressBlock is the hint that a progress notification makes: its message, else
// its numbers, which are in _meta then as well.
func progressBlock(p Progress) json.RawMessage {
	if p.Message != "" {
		return textBlock(p.Message, "", nil)
	}
	value := append([]byte(`{"progress":`), number(p.Progress)...)
	if p.Total > 0 {
		value = append(append(value, `,"total":`...), number(p.Total)...)
	}
	return textBlock(numbers(p), metaProgress, append(value, '}'))
}

// numbers spells progress without a message: n/total, or n.
func numbers(p Progress) string {
	if p.Total > 0 {
		return number(p.Progress) + "/" + number(p.Total)
	}
	return number(p.Progress)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// logBlock is the hint that a log message makes: its data, a string as it is and
// any other value as JSON; level and logger are in _meta.
func logBlock(l Log) json.RawMessage {
	data, _ := jsonrpc.Get(l.Raw, "data")
	text, ok := jsonrpc.GetString(data)
	if !ok {
		text = string(data)
	}
	value := jsonrpc.AppendString([]byte(`{"level":`), l.Level)
	if logger, ok := jsonrpc.GetString(l.Raw, "logger"); ok {
		value = jsonrpc.AppendString(append(value, `,"logger":`...), logger)
	}
	return textBlock(text, metaLog, append(value, '}'))
}

// leftOutBlock tells the reader of pieces that are missing: how many, or 0 for all
// that come from here on.
func leftOutBlock(n int, why string) json.RawMessage {
	if n == 0 {
		return textBlock("[further partial results are left out: "+why+"]", metaLeftOut, []byte(`{}`))
	}
	return textBlock(fmt.Sprintf("[%d partial results are left out: %s]", n, why), metaLeftOut, fmt.Appendf(nil, `{"count":%d}`, n))
}

// arrayOf is a JSON array of values.
func arrayOf(values []json.RawMessage) json.RawMessage {
	size := 2 + len(values)
	for _, v := range values {
		size += len(v)
	}
	b := append(make([]byte, 0, size), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}
