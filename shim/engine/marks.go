package engine

import (
	"taskgate/shim"
	"taskgate/shim/node"
)

// ReadMark describes a task by its id, as a working one, if one of these keys has marked the id for this owner and
// upstream (Options.MarkKeys). The store is not asked.
func ReadMark(keys [][]byte, id shim.ID, owner, upstream string) (shim.Task, bool) {
	return node.ReadMark(keys, id, owner, upstream)
}
