package modern

import (
	"encoding/json"
	"strconv"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Partial results (protocol.md 6.4, point 6) are an extension of the gateway's own, for clients
// that opt in with each request. All others get the plain tasks extension (T44, T48).

// wantsPartials reports whether a client's capabilities opt in: by the extension, or where SEP-2679
// has it (P8).
func wantsPartials(capabilities json.RawMessage) bool {
	ext, _ := jsonrpc.Get(capabilities, "extensions", mcp.ExtensionPartials)
	seed, _ := jsonrpc.Get(capabilities, "tasks", "streaming", "partial")
	return jsonrpc.IsObject(ext) || jsonrpc.IsObject(seed)
}

// readPartials reads which partial results of its tasks the client wants: all of them, or those
// after the seq that it names.
func (s *subscription) readPartials(offered bool) error {
	if s.partials = offered && wantsPartials(s.q.capabilities); !s.partials {
		return nil
	}
	after, ok := jsonrpc.Get(s.q.msg.Params, "_meta", mcp.ExtensionPartials)
	if !ok {
		return nil
	}
	if !jsonrpc.IsObject(after) {
		return wire.InvalidParams("params._meta[%q] must be an object", mcp.ExtensionPartials)
	}
	s.from = make(map[shim.ID]int64)
	for id, v := range jsonrpc.Members(after) {
		if !s.named[id] {
			return wire.InvalidParams("params._meta[%q] names a task that is not among params.notifications.taskIds", mcp.ExtensionPartials)
		}
		raw, ok := jsonrpc.Get(v, "after")
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if !jsonrpc.IsObject(v) || !ok || err != nil || n < 0 {
			return wire.InvalidParams("params._meta[%q]: each task needs an object with the seq that the client has, after: n", mcp.ExtensionPartials)
		}
		s.from[shim.ID(id)] = min(n, 1<<53) + 1
	}
	return nil
}

// followedTasks are the tasks of the subscription, with what is shown of each.
func (s *subscription) followedTasks() shim.Set {
	set := s.q.h.Shim.NewSet(s.q.principal, s.q.h.Name)
	for _, id := range s.tasks {
		task := shim.Tracked{ID: id, Outcome: true}
		if s.partials {
			from, resumes := s.from[id]
			task.Pieces, task.From, task.Live = true, from, !resumes
		}
		set.Add(task)
	}
	set.Close()
	return set
}
