package modern

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// readTaskIDs reads the ids of the tasks to follow (T43). They need the extension, which is checked
// first (T7).
func (s *subscription) readTaskIDs(want json.RawMessage, most int) error {
	list, ok := jsonrpc.Get(want, "taskIds")
	if !ok {
		return nil
	}
	if !s.q.tasks {
		return wire.NeedsTasks("task notifications need the extension " + mcp.ExtensionTasks)
	}
	ids, ok := jsonrpc.Strings(list)
	switch {
	case !ok:
		return wire.InvalidParams("params.notifications.taskIds must be an array of strings")
	case len(ids) > most:
		return wire.InvalidParams("params.notifications.taskIds names more than %d tasks", most)
	}
	s.named = make(map[string]bool)
	for _, text := range ids {
		s.named[text] = true
		if id, err := shim.ParseID(text); err == nil {
			s.tasks = append(s.tasks, id)
		}
	}
	return nil
}

// agreeTasks keeps only the ids of tasks that the caller may see. The client is not told which were
// left out: that would tell which ids exist (T45).
func (s *subscription) agreeTasks(ctx context.Context) error {
	var agreed []shim.ID
	for _, id := range s.tasks {
		switch t, err := s.q.h.Shim.Peek(ctx, s.q.principal, s.q.h.Name, id); {
		case err == nil:
			s.q.op.Link(t.Trace)
			agreed = append(agreed, id)
		case !errors.Is(err, shim.ErrNotFound):
			return err
		}
	}
	s.tasks = agreed
	return nil
}

// followTasks sends notifications/tasks: the present state of each task, and its state after each
// change, exactly as tasks/get would show it (T43). Partial results come before it if the client
// opted in (P3). A client that reads slowly gets the newest state and all partial results. It
// returns when all tasks have ended.
func (s *subscription) followTasks(ctx context.Context) error {
	return s.followedTasks().Follow(ctx, func(u shim.Update) error {
		for i, content := range u.Pieces {
			if err := s.sendMarked(mcp.NotifyTaskPartial, dialect.Ext.Partial(u.ID, u.First+int64(i), content)); err != nil {
				return err
			}
		}
		if u.Task == nil {
			return nil
		}
		defer budget.From(ctx).Give(u.Task.OutcomeSize) // the stream may go on for hours
		return s.sendMarked(mcp.NotifyTask, dialect.Ext.Changed(s.q.version, *u.Task))
	})
}
