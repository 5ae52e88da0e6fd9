package terminal

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"taskgate/gateway/operator"
	"taskgate/shim"
)

// maxMessage is how many characters of a message a table shows.
const maxMessage = 60

// shownID is how many characters of an id a table shows: enough to know a task by, and to name it on a command
// line.
const shownID = 8

// table aligns rows of cells, without unprintable characters: a message is the text of a server, and a terminal
// would obey it.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, head ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.addRow(head...)
	return t
}

func (t table) addRow(cells ...string) {
	for i := range cells {
		cells[i] = cmp.Or(printable(cells[i]), "-")
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t")) // Flush has the error
}

// printable is a text without control characters, and with a space for each blank character.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case !unicode.IsPrint(c):
			return -1
		}
		return c
	}, text)
}

// shorten cuts a text for a table.
func shorten(text string) string {
	if runes := []rune(text); len(runes) > maxMessage {
		return string(runes[:maxMessage-1]) + "…"
	}
	return text
}

func hasEnded(t operator.Task) bool { return shim.State(t.Status).Ended() }

// shortAge is how long a task took, or how old it is.
func shortAge(t operator.Task) string {
	if hasEnded(t) {
		return shortDuration(t.UpdatedAt.Sub(t.BegunAt))
	}
	return shortDuration(time.Since(t.BegunAt))
}

// shortDuration writes a duration with two units at most.
func shortDuration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Truncate(time.Second).String()
	case d < 24*time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func writeTasks(w io.Writer, tasks []operator.Task) error {
	t := newTable(w, "ID", "UPSTREAM", "TOOL", "PRINCIPAL", "STATE", "AGE/TOOK", "MADE", "REPLICA", "MESSAGE")
	for _, one := range tasks {
		t.addRow(one.ID[:min(len(one.ID), shownID)], one.Upstream, shorten(one.Tool), shorten(one.Principal), one.Status, shortAge(one), shortTime(one.CreatedAt), one.Replica, shorten(one.Message))
	}
	return t.w.Flush()
}

// shortTime writes a time in the local zone, with its day unless that is today.
func shortTime(at time.Time) string {
	if at, now := at.Local(), time.Now(); at.YearDay() != now.YearDay() || at.Year() != now.Year() {
		return at.Format("2006-01-02 15:04:05")
	}
	return at.Local().Format("15:04:05")
}

// writeTask writes all of one task.
func writeTask(w io.Writer, d operator.TaskDetail) error {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	fact := func(name, value string) {
		if value != "" {
			t.addRow(name, value)
		}
	}
	fact("id", d.ID)
	fact("tool", d.Tool+" at "+d.Upstream)
	t.addRow("principal", cmp.Or(d.Principal, "anonymous"))
	fact("state", d.Task.Status)
	fact("message", d.Message)
	fact("replica", d.Replica)
	fact("made", d.CreatedAt.Local().Format(time.RFC3339))
	fact("changed", d.UpdatedAt.Local().Format(time.RFC3339))
	if hasEnded(d.Task) {
		fact("took", shortAge(d.Task))
	} else {
		fact("age", shortAge(d.Task))
	}
	if d.KeptUntil != nil {
		fact("given up", "kept until "+d.KeptUntil.Local().Format(time.RFC3339))
	}
	if p := d.PickedUp; p != nil {
		fact("picked up", strings.TrimSpace(p.At.Local().Format(time.RFC3339)+" "+p.Client))
	}
	if d.ExpiresAt != nil {
		fact("kept until", d.ExpiresAt.Local().Format(time.RFC3339))
	}
	fact("runs again", d.RerunOf)
	fact("run again as", d.RerunAs)
	fact("trace", cmp.Or(d.TraceURL, d.TraceID))
	for _, q := range d.Asked {
		fact("question "+q.Key, strings.TrimSpace(q.State+" "+q.Method))
		fact("  asked", string(q.Params))
		fact("  answer", string(q.Answer))
	}
	fact("arguments", string(d.Arguments))
	fact("result", string(d.Result))
	fact("error", string(d.Error))
	if d.TooLarge {
		fact("result", fmt.Sprintf("%d bytes, too large to be shown", d.ResultSize))
	}
	if !d.ContentShown {
		fact("content", "hidden: admin_content is off")
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return writeEvents(w, d)
}

// writeEvents writes what happened to a task. A call is often sent before it becomes a task, so the times count
// from the first event.
func writeEvents(w io.Writer, d operator.TaskDetail) error {
	t, begin := newTable(w, "AT", "SINCE", "EVENT", "DETAIL"), d.CreatedAt
	if len(d.Events) > 0 {
		begin = d.Events[0].At
	}
	for _, e := range d.Events {
		t.addRow(shortTime(e.At), "+"+shortDuration(e.At.Sub(begin)), e.Kind, e.Detail)
	}
	if !hasEnded(d.Task) {
		t.addRow("now", "+"+shortDuration(time.Since(begin)), d.Task.Status, d.Message)
	}
	return t.w.Flush()
}

func writeReplicas(w io.Writer, replicas []operator.Replica) error {
	t := newTable(w, "REPLICA", "STATE", "TASKS", "SESSIONS", "STREAMS", "UP", "SEEN", "ADDRESS", "HOST", "VERSION", "CONFIG")
	for _, r := range replicas {
		state, up := "alive", ""
		switch {
		case !r.Alive && r.Draining:
			state = "stopped"
		case !r.Alive:
			state = "gone"
		case r.Draining:
			state = "draining"
		}
		if r.Alive && r.Since != nil {
			up = shortDuration(time.Since(*r.Since))
		}
		t.addRow(r.Name, state, fmt.Sprint(r.Tasks), fmt.Sprint(r.Sessions), fmt.Sprint(r.Streams), up, shortDuration(time.Since(r.SeenAt))+" ago", r.Address, r.Host, r.Version, r.Config)
	}
	return t.w.Flush()
}

func writeUpstreams(w io.Writer, upstreams []operator.Upstream) error {
	t := newTable(w, "UPSTREAM", "STATE", "ERA", "TRANSPORT", "CALLS", "QUEUED", "TASKS", "POLICIES")
	for _, u := range upstreams {
		state := "reachable"
		switch {
		case u.Removed:
			state = "removed"
		case !u.Reachable:
			state = "unreachable"
		}
		if len(u.Paused) > 0 {
			state += ", paused"
			if !slices.ContainsFunc(u.Paused, func(p operator.Pause) bool { return p.Tool == "" }) {
				state += " in part"
			}
		}
		var policies []string
		for _, p := range u.Policies {
			policies = append(policies, p.Tools+": "+p.Tasks)
		}
		t.addRow(u.Name, state, u.Era, u.Transport, fmt.Sprint(u.Calls), fmt.Sprint(u.Queued), fmt.Sprint(u.Tasks), strings.Join(policies, ", "))
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	for _, u := range upstreams {
		for _, r := range u.Replicas {
			if r.Reachable || r.Error == "" {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s from %s: %s\n", u.Name, r.Replica, printable(r.Error)); err != nil {
				return err
			}
		}
	}
	return nil
}

func writePaused(w io.Writer, paused []operator.Pause) error {
	t := newTable(w, "UPSTREAM", "TOOL", "PAUSED", "BY")
	for _, p := range paused {
		t.addRow(p.Upstream, shorten(cmp.Or(p.Tool, "all")), shortDuration(time.Since(p.Since))+" ago", shorten(p.Operator))
	}
	return t.w.Flush()
}

func writeClients(w io.Writer, all operator.Clients) error {
	t := newTable(w, "CLIENT", "NAMES", "LAST-MINUTE", "LAST-HOUR", "MOSTLY", "SESSIONS", "STREAMS", "CALLS", "TASKS")
	for _, c := range all.Clients {
		t.addRow(shorten(cmp.Or(c.Principal, c.Address, "without an address")), shorten(strings.Join(c.Names, ", ")), fmt.Sprint(c.LastMinute), fmt.Sprint(c.LastHour), mostly(c),
			fmt.Sprint(c.Sessions), fmt.Sprint(c.Streams), fmt.Sprint(c.Calls), fmt.Sprint(c.Tasks))
	}
	if all.Others > 0 {
		t.addRow("others", "", fmt.Sprint(all.Others), "", "", "", "", "", "")
	}
	return t.w.Flush()
}

// mostly is the method of most requests of a client.
func mostly(c operator.Client) (most string) {
	for method, n := range c.Methods {
		if n > c.Methods[most] || n == c.Methods[most] && method < most {
			most = method
		}
	}
	return most
}
