package dialect

import (
	"encoding/json"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// Segments is what one response says of a result that is streamed (A9, A12).
type Segments struct {
	ID     shim.ID
	First  int64             // seqNr of the first block
	Blocks []json.RawMessage // of the result, in order, as the server wrote them
	// Complete says that there are no others, Failed that the task has failed (A14).
	Complete, Failed bool
	// Reason says why a task failed that never had a block.
	Reason string
}

// Segments is one response of a task that streams its result: the blocks, each with
// its number (A9). A failure before there was any has its reason for content (A14).
func (legacy) Segments(s Segments) json.RawMessage {
	return related(s.append(newObject(s.size()+160)).done(), s.ID)
}

// Begun is the first response, to the call itself: its task, as created says, and the
// blocks that are there at once (A9); the bare task where there is nothing to add.
func (legacy) Begun(created json.RawMessage, s Segments) json.RawMessage {
	if len(s.Blocks) == 0 && !s.Complete {
		return created
	}
	for name, value := range jsonrpc.Members(s.append(newObject(s.size() + 64)).done()) {
		if next, err := jsonrpc.Set(created, value, name); err == nil {
			created = next
		}
	}
	return created
}

func (s Segments) size() int {
	n := 96 + len(s.Reason)
	for _, b := range s.Blocks {
		n += len(b) + 32
	}
	return n
}

// append adds the members of a response.
func (s Segments) append(o *object) *object {
	if s.Failed && s.Reason != "" {
		block := newObject(len(s.Reason) + 32)
		block.str("type", "text")
		block.str("text", s.Reason)
		o.raw("content", append(append([]byte{'['}, block.done()...), ']'))
	} else {
		list := append(make([]byte, 0, s.size()), '[')
		for i, b := range s.Blocks {
			if i > 0 {
				list = append(list, ',')
			}
			list = append(list, numbered(b, s.First+int64(i))...)
		}
		o.raw("partial-content", append(list, ']'))
	}
	o.raw("isComplete", strconv.AppendBool(nil, s.Complete))
	o.raw("isError", strconv.AppendBool(nil, s.Failed))
	return o
}

// numbered is a block with its seqNr (A10).
func numbered(block json.RawMessage, no int64) json.RawMessage {
	out, err := jsonrpc.Set(block, strconv.AppendInt(nil, no, 10), "seqNr")
	if err != nil {
		return block // no object: the server's own affair
	}
	return out
}
