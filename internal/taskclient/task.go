package taskclient

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"taskgate/internal/mcp"
)

// Statuses of a task that never change again.
const (
	Completed = "completed"
	Failed    = "failed"
	Cancelled = "cancelled"
)

// Task is a task as the extension shows it. ResultType is "task" where it is the
// answer to a call and "complete" where it is that to tasks/get.
type Task struct {
	ResultType     string          `json:"resultType"`
	ID             string          `json:"taskId"`
	Status         string          `json:"status"`
	StatusMessage  string          `json:"statusMessage"`
	CreatedAt      time.Time       `json:"createdAt"`
	LastUpdatedAt  time.Time       `json:"lastUpdatedAt"`
	TTLMs          *int64          `json:"ttlMs"`
	PollIntervalMs int64           `json:"pollIntervalMs"`
	Result         json.RawMessage `json:"result"`
	Error          *Error          `json:"error"`
}

// Ended reports whether the task's status is final.
func (t Task) Ended() bool {
	return t.Status == Completed || t.Status == Failed || t.Status == Cancelled
}

// CallTool calls a tool. The server alone decides whether the answer is the
// tool's result or a task; the one that it is not is nil.
func (c *Client) CallTool(ctx context.Context, name string, arguments any) (json.RawMessage, *Task, error) {
	result, err := c.Do(ctx, mcp.MethodToolsCall, map[string]any{"name": name, "arguments": arguments})
	if err != nil {
		return nil, nil, err
	}
	var task Task
	if err := json.Unmarshal(result, &task); err != nil {
		return nil, nil, fmt.Errorf("answer of %s: %w", name, err)
	}
	switch task.ResultType {
	case mcp.ResultTask:
		return nil, &task, nil
	case mcp.ResultComplete:
		return result, nil, nil
	default:
		return nil, nil, fmt.Errorf("answer of %s has the result type %q", name, task.ResultType)
	}
}

// Get asks for the task as it is now.
func (c *Client) Get(ctx context.Context, id string) (Task, error) {
	result, err := c.Do(ctx, mcp.MethodTasksGet, map[string]any{"taskId": id})
	if err != nil {
		return Task{}, err
	}
	var task Task
	if err := json.Unmarshal(result, &task); err != nil {
		return Task{}, fmt.Errorf("task %s: %w", id, err)
	}
	if task.ResultType != mcp.ResultComplete {
		return Task{}, fmt.Errorf("task %s: the result type is %q", id, task.ResultType)
	}
	return task, nil
}

// Cancel asks for the end of the task.
func (c *Client) Cancel(ctx context.Context, id string) error {
	_, err := c.Do(ctx, mcp.MethodTasksCancel, map[string]any{"taskId": id})
	return err
}

// Listen hears of the tasks until all of them have ended. What the server says of
// them Trace sees as it comes.
func (c *Client) Listen(ctx context.Context, ids ...string) error {
	_, err := c.Do(ctx, mcp.MethodListen, map[string]any{"notifications": map[string]any{"taskIds": ids}})
	return err
}

// Wait polls, as often as the server asks for, until the task has ended, and
// shows each state to see, if not nil.
func (c *Client) Wait(ctx context.Context, id string, see func(Task)) (Task, error) {
	for {
		task, err := c.Get(ctx, id)
		if err != nil {
			return Task{}, err
		}
		if see != nil {
			see(task)
		}
		if task.Ended() {
			return task, nil
		}
		timer := time.NewTimer(max(time.Duration(task.PollIntervalMs)*time.Millisecond, 10*time.Millisecond))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Task{}, fmt.Errorf("task %s is still %s: %w", id, task.Status, ctx.Err())
		}
	}
}
