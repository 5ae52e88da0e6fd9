package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// grace is how long the gateway lets a call take before it becomes a task.
const grace = time.Second

// story runs the client. It checks every step: a demonstration must show what it says.
func story(ctx context.Context, line *timeline, url string, restart func(context.Context) error) error {
	client := &taskclient.Client{URL: url, Tasks: true, Trace: line.message}
	line.title("A client that can take tasks asks what the server can do.")
	if err := discover(ctx, client); err != nil {
		return err
	}
	line.title("A fast tool. The answer comes at once, as it would without the gateway.")
	if err := fast(ctx, client); err != nil {
		return err
	}
	line.title(fmt.Sprintf("A tool that blocks for 5 s. After %s the gateway answers with a task in its place.", grace))
	task, err := slow(ctx, client)
	if err != nil {
		return err
	}
	line.title("The tool's progress shows in the task.")
	if err := follow(ctx, client, task); err != nil {
		return err
	}
	line.title("The gateway is killed (kill -9) and started again. The task is on disk, and the server is asked for the rest.")
	if err := restart(ctx); err != nil {
		return err
	}
	if err := finish(ctx, client, task); err != nil {
		return err
	}
	line.title("A tool that writes bit by bit: a client that takes partial results reads along.")
	if err := along(ctx, line, url); err != nil {
		return err
	}
	line.title("A client without the extension never sees a task: its call blocks until the tool is done.")
	return blocking(ctx, &taskclient.Client{URL: url, Trace: line.message})
}

func discover(ctx context.Context, client *taskclient.Client) error {
	result, err := client.Do(ctx, mcp.MethodDiscover, nil)
	if err != nil {
		return err
	}
	var found struct {
		Capabilities struct{ Extensions map[string]json.RawMessage }
	}
	if err := json.Unmarshal(result, &found); err != nil {
		return fmt.Errorf("server/discover: %w", err)
	}
	if _, ok := found.Capabilities.Extensions[mcp.ExtensionTasks]; !ok {
		return errors.New("the gateway does not advertise the tasks extension")
	}
	return nil
}

func fast(ctx context.Context, client *taskclient.Client) error {
	result, task, err := client.CallTool(ctx, "count_words", map[string]any{"text": "how many words are these"})
	return plain("count_words", "5", result, task, err)
}

func slow(ctx context.Context, client *taskclient.Client) (*taskclient.Task, error) {
	_, task, err := client.CallTool(ctx, "research", map[string]any{"topic": "tea", "seconds": 5})
	switch {
	case err != nil:
		return nil, err
	case task == nil:
		return nil, errors.New("research was answered without a task")
	case task.ID == "" || task.Ended():
		return nil, fmt.Errorf("research became a task with the id %q and the status %s", task.ID, task.Status)
	}
	return task, nil
}

// errSeen ends a wait that has seen enough.
var errSeen = errors.New("seen")

// follow reads the task until it shows the progress of the tool.
func follow(ctx context.Context, client *taskclient.Client, task *taskclient.Task) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	_, err := client.Wait(ctx, task.ID, func(t taskclient.Task) {
		if t.Ended() || t.StatusMessage != "" {
			stop(errSeen)
		}
	})
	switch {
	case err == nil:
		return errors.New("the task ended before it showed any progress")
	case errors.Is(context.Cause(ctx), errSeen):
		return nil
	}
	return err
}

// finish reads the task until it has ended, and checks its result.
func finish(ctx context.Context, client *taskclient.Client, task *taskclient.Task) error {
	progressed := false
	end, err := client.Wait(ctx, task.ID, func(t taskclient.Task) { progressed = progressed || !t.Ended() })
	switch {
	case err != nil:
		return err
	case end.Status != taskclient.Completed:
		return fmt.Errorf("the task ended as %s: %s", end.Status, end.StatusMessage)
	case !strings.Contains(string(end.Result), "Report on tea"):
		return fmt.Errorf("the task's result is %s", end.Result)
	case !progressed:
		return errors.New("the task had ended before the gateway was killed")
	}
	return nil
}

// along reads the text of a tool while the tool writes it, and compares it with the result.
func along(ctx context.Context, line *timeline, url string) error {
	var read strings.Builder
	var end taskclient.Task
	client := &taskclient.Client{URL: url, Tasks: true, Partials: true}
	client.Trace = func(m taskclient.Message) {
		var n struct {
			Method string
			Params json.RawMessage
		}
		_ = json.Unmarshal(m.Body, &n) // anything else is printed as it is
		switch n.Method {
		case mcp.NotifyTaskPartial:
			text := partialText(n.Params)
			read.WriteString(text)
			line.live(text)
			return
		case mcp.NotifyTask:
			_ = json.Unmarshal(n.Params, &end)
			if !end.Ended() {
				return // its status message repeats the last word
			}
		}
		line.message(m)
	}
	_, task, err := client.CallTool(ctx, "write", map[string]any{"topic": "tea", "seconds": 3})
	if err != nil {
		return err
	}
	if task == nil {
		return errors.New("write was answered without a task")
	}
	if err := client.Listen(ctx, task.ID); err != nil {
		return err
	}
	if !strings.Contains(string(end.Result), read.String()) || !strings.Contains(read.String(), "tea") {
		return fmt.Errorf("read %q while it was written, and then got %s", read.String(), end.Result)
	}
	return nil
}

// partialText returns the text of a partial result.
func partialText(params json.RawMessage) string {
	var partial struct {
		Content []struct{ Text string }
	}
	_ = json.Unmarshal(params, &partial) // a missing text shows at the end
	text := ""
	for _, block := range partial.Content {
		text += block.Text
	}
	return text
}

func blocking(ctx context.Context, client *taskclient.Client) error {
	result, task, err := client.CallTool(ctx, "research", map[string]any{"topic": "coffee", "seconds": 2})
	return plain("research", "Report on coffee", result, task, err)
}

// plain checks the answer to a call that must not have become a task.
func plain(tool, want string, result json.RawMessage, task *taskclient.Task, err error) error {
	switch {
	case err != nil:
		return err
	case task != nil:
		return fmt.Errorf("%s became a task", tool)
	case !strings.Contains(string(result), want):
		return fmt.Errorf("%s returned %s", tool, result)
	}
	return nil
}
