package e2e

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"taskgate/internal/taskclient"
)

// Whoever listens to a task hears of its progress and its end, on whichever
// replica: the messages are those of tasks/get, and the stream ends with the task.
func TestListenOnTheOtherReplica(t *testing.T) {
	t.Parallel()
	a, b := twoReplicas(t)
	task := callTask(t, a.client(true), "research", research(2))

	var mu sync.Mutex
	var heard []taskclient.Task
	listener := b.client(true)
	listener.Trace = func(m taskclient.Message) {
		var n struct {
			Method string
			Params taskclient.Task
		}
		if err := json.Unmarshal(m.Body, &n); err == nil && !m.Sent && n.Method == "notifications/tasks" {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, n.Params)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	_, err := listener.Do(ctx, "subscriptions/listen", map[string]any{
		"notifications": map[string]any{"taskIds": []string{task.ID}},
	})
	if err != nil {
		t.Fatalf("the stream did not end well: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	messages := map[string]bool{}
	for i, h := range heard {
		messages[h.StatusMessage] = true
		if h.ID != task.ID || h.Ended() != (i == len(heard)-1) {
			t.Errorf("message %d of %d: %+v", i+1, len(heard), h)
		}
	}
	if len(messages) < 3 {
		t.Fatalf("heard %d different messages in %d, want the progress", len(messages), len(heard))
	}
	end := heard[len(heard)-1]
	if end.Status != taskclient.Completed {
		t.Fatalf("ended %s", end.Status)
	}
	if err := wantReport(textOf(t, end.Result)); err != nil {
		t.Error(err)
	}
}
