package upstream

import (
	"encoding/json"
	"slices"

	"taskgate/internal/mcp"
)

// checkpoint is all that another replica needs to go on with a call (design.md
// 0.6). Stored ones outlive the process that wrote them: a field may be added,
// none may change its meaning.
type checkpoint struct {
	Era     string `json:"era"`
	Version string `json:"version"`
	// Session is the upstream session's id, Generation how often this replica had
	// opened it anew.
	Session    string `json:"session,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// ID is the call's JSON-RPC id and progress token.
	ID string `json:"id"`
	// Last is the id of the last event read from the call's stream. With it the
	// call can be resumed (X8).
	Last string `json:"last,omitempty"`
	// Asked counts the questions of the call, so that keys stay unique (T39).
	Asked int `json:"asked,omitempty"`
	// Pending are the questions that the server waits for.
	Pending []pending `json:"pending,omitempty"`
	// Alone says that there is no call: the one question that is pending belongs to none.
	Alone bool `json:"alone,omitempty"`
	// Task is set where the server runs the call as a task of its own.
	Task *taskMark `json:"task,omitempty"`
}

// pending is a request of the server that has not been answered yet.
type pending struct {
	ID     json.RawMessage `json:"id"` // as the server spelt it
	Key    string          `json:"key"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
	// Aside says that it came on the GET stream of the session.
	Aside bool `json:"aside,omitempty"`
}

// open notes that these are asked, and close that they are not any more.
func (c *checkpoint) open(asked []pending) {
	c.close(asked) // those taken over are there already
	c.Pending = append(c.Pending, asked...)
}

func (c *checkpoint) close(asked []pending) {
	c.Pending = slices.DeleteFunc(slices.Clone(c.Pending), func(p pending) bool {
		return slices.ContainsFunc(asked, func(a pending) bool { return a.Key == p.Key })
	})
}

func (c *checkpoint) encode() json.RawMessage {
	b, _ := json.Marshal(c) // raw members come from a parsed message: cannot fail
	return b
}

// Resumable reports whether a call can be picked up from a checkpoint: that of a legacy
// server, with an event id, or with the name of its task. Whether the server still has
// it is known when it is asked.
func (h *HTTP) Resumable(cp json.RawMessage) bool {
	_, ok := decodeResumable(cp)
	return ok
}

// decodeResumable reads a checkpoint; false if nothing can be picked up from it.
func decodeResumable(cp json.RawMessage) (checkpoint, bool) {
	var c checkpoint
	err := json.Unmarshal(cp, &c)
	return c, err == nil && c.resumable() && mcp.EraOf(c.Version) == mcp.Legacy
}

// resumable reports whether a call can be picked up where this says: its stream, or the
// task that the server has made of it; or whether it only has to be asked.
func (c *checkpoint) resumable() bool {
	return c.streamed() || c.legacyAlone() || c.Era == mcp.Legacy.String() && c.Task != nil && c.Task.ID != ""
}

// streamed reports whether a stream can be picked up where this says.
func (c *checkpoint) streamed() bool {
	return c.Era == mcp.Legacy.String() && c.Last != ""
}
