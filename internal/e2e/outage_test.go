package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// Without its Redis the gateway serves what needs no task, says so where it needs
// one, and is itself again once Redis is back.
func TestRedisOutage(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--store", store.URL(), "--grace", "300ms")
	client := g.client(true)
	before := callTask(t, client, "research", research(0.5))
	waitFor(t, client, before.ID, "completed")

	store.Stop()
	if got := callPlain(t, client, "count_words", map[string]any{"text": "one two"}); got != "2" {
		t.Errorf("count_words: %s", got)
	}
	if err := wantReport(callPlain(t, client, "research", research(1))); err != nil {
		t.Errorf("a slow call without a store: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // store_wait is 25 s
	defer cancel()
	var answer *taskclient.Error
	if _, err := client.Get(ctx, before.ID); !errors.As(err, &answer) || answer.Code != -32603 || answer.Status != 200 {
		t.Errorf("tasks/get without a store: %v", err)
	}

	store.Restart()
	eventually(t, "tasks again", func() error {
		result, task, err := client.CallTool(t.Context(), "research", research(0.6))
		if err == nil && task == nil {
			err = errors.New("no task: " + string(result))
		}
		if err == nil {
			waitFor(t, client, task.ID, "completed")
		}
		return err
	})
	if err := wantReport(textOf(t, waitFor(t, client, before.ID, "completed").Result)); err != nil {
		t.Errorf("the task from before: %v", err)
	}
	select {
	case <-g.Done():
		t.Error("the gateway has ended")
	default:
	}
}

// A task that is running when Redis goes away is still there, with its result,
// when Redis is back.
func TestRedisOutageDuringATask(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--store", store.URL(), "--grace", "300ms")
	client := g.client(true)
	task := callTask(t, client, "research", research(2))
	store.Stop()
	if err := wantReport(callPlain(t, client, "research", research(2.5))); err != nil {
		t.Error(err)
	}
	store.Restart()
	eventually(t, "the result", func() error {
		now, err := client.Get(t.Context(), task.ID)
		if err == nil && !now.Ended() {
			err = errNotYet
		}
		return err
	})
	if err := wantReport(textOf(t, waitFor(t, client, task.ID, "completed").Result)); err != nil {
		t.Error(err)
	}
}
