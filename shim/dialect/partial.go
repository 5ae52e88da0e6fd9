package dialect

import (
	"encoding/json"

	"taskgate/shim"
)

// Partial is the params of notifications/tasks/partial: a batch of content blocks and its number
// (P1, P4). Modern clients get no related-task mark (H14).
func (extension) Partial(id shim.ID, seq int64, content json.RawMessage) json.RawMessage {
	return partial(id, seq, content).done()
}

// Partial is the params of notifications/tasks/partial, related to its task like all messages for
// one (P14).
func (l legacy) Partial(id shim.ID, seq int64, content json.RawMessage) json.RawMessage {
	return l.Related(partial(id, seq, content).done(), id)
}

func partial(id shim.ID, seq int64, content json.RawMessage) *object {
	o := newObject(len(content) + 192)
	o.str("taskId", string(id))
	o.raw("content", content)
	o.num("seq", seq)
	return o
}
