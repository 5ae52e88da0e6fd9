package dialect

import (
	"encoding/json"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// Segments is one response of a task that streams its result (A9, A12): blocks of the
// result, of which the first has the number first, whether there are no others, and
// whether the task has failed (A14). The blocks are the server's, each with its number.
func (legacy) Segments(id shim.ID, first int64, blocks []json.RawMessage, complete, failed bool) json.RawMessage {
	size := 160
	for _, b := range blocks {
		size += len(b) + 32
	}
	list := append(make([]byte, 0, size), '[')
	for i, b := range blocks {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, numbered(b, first+int64(i))...)
	}
	o := newObject(len(list) + 160)
	o.raw("partial-content", append(list, ']'))
	o.raw("isComplete", strconv.AppendBool(nil, complete))
	o.raw("isError", strconv.AppendBool(nil, failed))
	return related(o.done(), id)
}

// numbered is a block with its seqNr (A10).
func numbered(block json.RawMessage, no int64) json.RawMessage {
	out, err := jsonrpc.Set(block, strconv.AppendInt(nil, no, 10), "seqNr")
	if err != nil {
		return block // no object: the server's own affair
	}
	return out
}
