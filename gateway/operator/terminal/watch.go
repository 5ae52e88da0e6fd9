package terminal

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"taskgate/gateway/operator"
	"taskgate/internal/work"
)

const (
	// watchPause is the time between two reads.
	watchPause = time.Second
	// deathsShown is how long a dead replica is named above the tasks.
	deathsShown = 10 * time.Minute
	// Control sequences of a terminal: draw from the top, and remove the earlier picture.
	clearScreen = "\x1b[2J"
	topOfScreen = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// watchTasks draws the running tasks each second, as their ages grow, until it is interrupted. Without a terminal it
// prints them again when they have changed; as JSON, each time on one line.
func (c command) watchTasks(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return misuse("tasks watch takes no arguments: --filter says which tasks")
	}
	if len(c.o.Filters["status"]) == 0 && c.o.Filters.Get("ended_within") == "" {
		c.o.Filters["status"] = open
	}
	c.Interactive = c.Interactive && !c.o.JSON
	for before := ""; ; {
		text, state, err := c.readPicture(ctx)
		out := c.Out
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && before == "", isRefused(err, http.StatusUnauthorized), isRefused(err, http.StatusBadRequest):
			return err
		case err != nil:
			text = fmt.Sprintf("%s\n", err) // the next read may reach it
			state = text
			if c.o.JSON {
				out = c.Err
			}
		}
		if c.Interactive || state != before {
			if err := c.drawPicture(out, text, before == ""); err != nil {
				return err
			}
		}
		before = state
		if work.Pause(ctx, watchPause) != nil {
			return nil
		}
	}
}

// readPicture reads and writes one picture. state is what of it does not change by time alone.
func (c command) readPicture(ctx context.Context) (text, state string, err error) {
	lines := cmp.Or(c.o.Limit, defaultLimit)
	if c.Interactive {
		if _, high := c.Size(); high > 6 {
			lines = high - 4
		}
	}
	all, err := c.readTasks(ctx, c.o.makeQuery(), lines)
	if err != nil {
		return "", "", err
	}
	var read, picture bytes.Buffer
	if err = writeJSON(&read, all); err != nil || c.o.JSON {
		return read.String(), read.String(), err
	}
	var replicas operator.Replicas
	if err = c.readPath(ctx, "replicas", nil, &replicas); err != nil {
		return "", "", err
	}
	fmt.Fprintln(&picture, summarise(all, replicas.Replicas))
	fmt.Fprintln(&picture)
	err = writeTasks(&picture, all.Tasks)
	return picture.String(), read.String(), err
}

// summarise writes the line above the tasks.
func summarise(all operator.Tasks, replicas []operator.Replica) string {
	states := map[string]int{}
	for _, t := range all.Tasks {
		states[t.Status]++
	}
	parts := []string{Count(len(all.Tasks), "task")}
	if all.Next != "" {
		parts[0] = "the first " + parts[0]
	}
	for _, state := range []string{"working", "input_required", "queued"} {
		if states[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", states[state], state))
		}
	}
	alive, gone := 0, []string{}
	for _, r := range replicas {
		switch {
		case r.Alive:
			alive++
		case !r.Draining && time.Since(r.SeenAt) < deathsShown:
			gone = append(gone, fmt.Sprintf("%s is gone since %s", r.Name, shortDuration(time.Since(r.SeenAt))))
		}
	}
	return strings.Join(append(append(parts, Count(alive, "replica")), gone...), " · ")
}

// drawPicture shows a picture in place of the one before, if there was one.
func (c command) drawPicture(out io.Writer, text string, first bool) error {
	if !c.Interactive {
		if !first && !c.o.JSON {
			text = "\n" + text
		}
		_, err := io.WriteString(out, text)
		return err
	}
	columns, _ := c.Size()
	var screen strings.Builder
	if first {
		screen.WriteString(clearScreen)
	}
	screen.WriteString(topOfScreen)
	for line := range strings.Lines(text) {
		if runes := []rune(strings.TrimSuffix(line, "\n")); columns > 0 && len(runes) > columns {
			line = string(runes[:columns])
		}
		screen.WriteString(strings.TrimSuffix(line, "\n") + clearLine + "\r\n")
	}
	screen.WriteString(clearBelow)
	_, err := io.WriteString(out, screen.String())
	return err
}
