package terminal

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"taskgate/gateway/operator"
	"taskgate/shim"
)

const (
	// KeyVariable is the environment variable in place of --key.
	KeyVariable = "TASKGATE_ADMIN_KEY"
	// AddressVariable is the environment variable in place of --admin.
	AddressVariable = "TASKGATE_ADMIN"

	// pageSize bounds the tasks of one request, and defaultLimit those listed without --limit.
	pageSize     = 500
	defaultLimit = 100
	// mostCancelled bounds the tasks that one command cancels without --limit.
	mostCancelled = 10000
)

// UsageError is a mistake in the command line.
type UsageError string

// Error says what is wrong.
func (e UsageError) Error() string { return string(e) }

func misuse(format string, args ...any) error { return UsageError(fmt.Sprintf(format, args...)) }

// Streams are those of the process. Interactive says that a person is at the terminal, who can be asked, and
// for whom the screen is redrawn.
type Streams struct {
	In          io.Reader
	Out, Err    io.Writer
	Interactive bool
	// Size is that of the terminal in columns and lines; 0 where it is unknown.
	Size func() (columns, lines int)
}

// Options are the flags of the verbs.
type Options struct {
	JSON    bool
	Yes     bool
	Oldest  bool
	Limit   int // 0 for the default
	Filters url.Values
}

// Define adds the flags.
func (o *Options) Define(flags *flag.FlagSet) {
	o.Filters = url.Values{}
	flags.BoolVar(&o.JSON, "json", false, "")
	flags.BoolVar(&o.Yes, "yes", false, "")
	flags.BoolVar(&o.Oldest, "oldest", false, "")
	flags.Func("limit", "", o.setLimit)
	flags.Func("filter", "", o.addFilter)
}

func (o *Options) setLimit(text string) (err error) {
	if o.Limit, err = strconv.Atoi(text); err != nil || o.Limit < 1 {
		return errors.New("it is a number, and at least 1")
	}
	return nil
}

// filterNames are the names for --filter. The gateway checks them further.
var filterNames = []string{"upstream", "tool", "status", "principal", "replica", "id", "older_than", "newer_than", "ended_within"}

// statuses are the values for --filter status.
var statuses = append([]string{"open"}, operator.Statuses...)

// open is the meaning of status=open.
var open = operator.Statuses[:len(shim.OpenStates)]

func (o *Options) addFilter(text string) error {
	name, value, ok := strings.Cut(text, "=")
	name = strings.ReplaceAll(name, "-", "_")
	if !ok || !slices.Contains(filterNames, name) {
		return fmt.Errorf("a filter is NAME=VALUE, with the name %s", strings.Join(filterNames, ", "))
	}
	switch {
	case value == "" && name != "principal": // of anonymous callers
		return fmt.Errorf("%s is empty: it would let every task through", name)
	case name == "status":
		for status := range strings.SplitSeq(value, ",") {
			switch {
			case !slices.Contains(statuses, status):
				return fmt.Errorf("status is one of %s", strings.Join(statuses, ", "))
			case status == "open":
				o.Filters[name] = append(o.Filters[name], open...)
			default:
				o.Filters.Add(name, status)
			}
		}
	default:
		o.Filters.Add(name, value) // the gateway refuses a name that is given twice
	}
	return nil
}

// flagsOf are the flags that only some verbs have, by verb.
var flagsOf = map[string][]string{
	"tasks list": {"filter", "oldest", "limit"}, "tasks watch": {"filter", "oldest", "limit"},
	"tasks cancel": {"filter", "oldest", "limit", "yes"},
}

// checkVerb refuses flags that a verb would ignore.
func (o *Options) checkVerb(verb string) error {
	given := []struct {
		name string
		is   bool
	}{{"filter", len(o.Filters) > 0}, {"oldest", o.Oldest}, {"limit", o.Limit > 0}, {"yes", o.Yes}}
	for _, flag := range given {
		if flag.is && !slices.Contains(flagsOf[verb], flag.name) {
			return misuse("%s has no --%s", verb, flag.name)
		}
	}
	return nil
}

// makeQuery returns the filters with the order.
func (o *Options) makeQuery() url.Values {
	if o.Oldest {
		o.Filters.Set("order", "oldest")
	}
	return o.Filters
}

// Run executes the verb tasks, replicas, upstreams, clients, pause or resume with its arguments. A UsageError is a mistake
// in those; any other error says what failed.
func Run(ctx context.Context, g *Gateway, s Streams, o Options, verb string, args []string) error {
	c := command{Gateway: g, Streams: s, o: o}
	whole := verb
	if verb == "tasks" {
		if len(args) == 0 {
			args = []string{"list"}
		}
		whole += " " + args[0]
	}
	if err := o.checkVerb(whole); err != nil {
		return err
	}
	switch verb {
	case "replicas":
		var all operator.Replicas
		return c.showAnswer(ctx, "replicas", args, &all, func(w io.Writer) error { return writeReplicas(w, all.Replicas) })
	case "upstreams":
		var all operator.Upstreams
		return c.showAnswer(ctx, "upstreams", args, &all, func(w io.Writer) error { return writeUpstreams(w, all.Upstreams) })
	}
	switch verb {
	case "clients":
		var all operator.Clients
		return c.showAnswer(ctx, "clients", args, &all, func(w io.Writer) error { return writeClients(w, all) })
	case "pause", "resume":
		return c.changePauses(ctx, verb, args)
	}
	switch what, args := args[0], args[1:]; what {
	case "list":
		return c.listTasks(ctx, args)
	case "show", "events":
		return c.showTask(ctx, what, args)
	case "watch":
		return c.watchTasks(ctx, args)
	case "cancel":
		return c.cancelTasks(ctx, args)
	case "rerun":
		return c.rerunTasks(ctx, args)
	default:
		return misuse("tasks has list, show, events, watch, cancel and rerun, not %q", what)
	}
}

// command is one command line.
type command struct {
	*Gateway
	Streams
	o Options
}

// writeAnswer prints an answer, as JSON or as a table.
func (c command) writeAnswer(read any, table func(io.Writer) error) error {
	if !c.o.JSON {
		return table(c.Out)
	}
	return writeJSON(c.Out, read)
}

func writeJSON(w io.Writer, answer any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(answer); err != nil {
		return err
	}
	_, err := w.Write(EscapeJSON(text.Bytes()))
	return err
}

// EscapeJSON returns lines of JSON in which characters that a terminal does not print are escaped: they could move its
// cursor, or show a text in another order. Such characters stand only within strings.
func EscapeJSON(lines []byte) []byte {
	unsafe := func(c rune) bool { return !unicode.IsPrint(c) && c != '\n' }
	if bytes.IndexFunc(lines, unsafe) < 0 {
		return lines
	}
	var out []byte
	for _, c := range string(lines) {
		switch {
		case !unsafe(c):
			out = utf8.AppendRune(out, c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, c)
		}
	}
	return out
}

// showAnswer reads and prints a whole answer.
func (c command) showAnswer(ctx context.Context, path string, args []string, into any, table func(io.Writer) error) error {
	if len(args) > 0 {
		return misuse("%s takes no arguments", path)
	}
	if err := c.readPath(ctx, path, nil, into); err != nil {
		return err
	}
	return c.writeAnswer(into, table)
}

func (c command) listTasks(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return misuse("tasks list takes no arguments: --filter says which tasks")
	}
	limit := cmp.Or(c.o.Limit, defaultLimit)
	all, err := c.readTasks(ctx, c.o.makeQuery(), limit)
	if err != nil {
		return err
	}
	return c.writeAnswer(all, func(w io.Writer) error {
		if err := writeTasks(w, all.Tasks); err != nil {
			return err
		}
		if all.Next != "" {
			fmt.Fprintf(c.Err, "There are more: --limit %d shows them.\n", limit*10)
		}
		return nil
	})
}

// showTask prints one task, or its events alone.
func (c command) showTask(ctx context.Context, what string, args []string) error {
	if len(args) != 1 {
		return misuse("tasks %s needs the id of one task", what)
	}
	t, err := c.readTask(ctx, args[0])
	if err != nil {
		return err
	}
	if what == "events" {
		return c.writeAnswer(map[string]any{"events": t.Events}, func(w io.Writer) error { return writeEvents(w, t) })
	}
	return c.writeAnswer(t, func(w io.Writer) error { return writeTask(w, t) })
}

// cancelTasks cancels the named tasks, or those that the filters let through.
func (c command) cancelTasks(ctx context.Context, args []string) error {
	byFilter := len(c.o.Filters) > 0
	if byFilter == (len(args) > 0) {
		return misuse("tasks cancel needs either ids or --filter")
	}
	if byFilter {
		return c.cancelMatching(ctx)
	}
	var failed []error
	for _, begin := range args {
		id, err := c.findTask(ctx, begin)
		if err == nil {
			err = c.cancelTask(ctx, id)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", begin, err))
			continue
		}
		fmt.Fprintf(c.Out, "%s is cancelled\n", id)
	}
	return errors.Join(failed...)
}

// rerunTasks runs the calls of the named tasks again.
func (c command) rerunTasks(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return misuse("tasks rerun needs the id of a task")
	}
	var failed []error
	for _, begin := range args {
		id, err := c.findTask(ctx, begin)
		var made operator.Task
		if err == nil {
			made, err = c.rerunTask(ctx, id)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", begin, err))
			continue
		}
		fmt.Fprintf(c.Out, "%s runs again as %s\n", id, made.ID)
	}
	return errors.Join(failed...)
}

// changePauses pauses or resumes what the arguments name, each as UPSTREAM or UPSTREAM/TOOL. Without any, it lists what
// is paused.
func (c command) changePauses(ctx context.Context, verb string, args []string) error {
	if len(args) == 0 {
		var all operator.Upstreams
		if err := c.readPath(ctx, "upstreams", nil, &all); err != nil {
			return err
		}
		paused := []operator.Pause{}
		for _, u := range all.Upstreams {
			paused = append(paused, u.Paused...)
		}
		return c.writeAnswer(map[string]any{"paused": paused}, func(w io.Writer) error { return writePaused(w, paused) })
	}
	var failed []error
	for _, what := range args {
		upstream, tool, named := strings.Cut(what, "/")
		if upstream == "" || named && tool == "" {
			return misuse("%s needs UPSTREAM or UPSTREAM/TOOL, not %q", verb, what)
		}
		p, err := c.changePause(ctx, verb, upstream, tool)
		if err == nil {
			err = c.writeAnswer(p, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s is %sd\n", printable(what), verb)
				return err
			})
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", what, err))
		}
	}
	return errors.Join(failed...)
}

// Confirm asks a question, and reports whether the answer is yes. The end of the input is a no.
func Confirm(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprintf(out, "\n%s [y/N] ", question)
	line, _ := bufio.NewReader(in).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// cancelMatching asks before it cancels. A task that has ended meanwhile is no failure.
func (c command) cancelMatching(ctx context.Context) error {
	if !c.o.Yes && !c.Interactive {
		return misuse("tasks cancel --filter needs --yes where nobody can be asked")
	}
	if len(c.o.Filters["status"]) == 0 {
		c.o.Filters["status"] = open
	}
	all, err := c.readTasks(ctx, c.o.makeQuery(), cmp.Or(c.o.Limit, mostCancelled))
	if err != nil {
		return err
	}
	if len(all.Tasks) == 0 {
		_, err := fmt.Fprintln(c.Out, "no task matches that has not ended")
		return err
	}
	if !c.o.Yes {
		if err := writeTasks(c.Out, all.Tasks); err != nil {
			return err
		}
		if !Confirm(c.In, c.Out, "Cancel "+Count(len(all.Tasks), "task")+"?") {
			return errors.New("nothing is cancelled")
		}
	}
	cancelled, ended := 0, 0
	var failed []error
	for _, t := range all.Tasks {
		switch err := c.cancelTask(ctx, t.ID); {
		case err == nil:
			cancelled++
		case isRefused(err, http.StatusConflict), isRefused(err, http.StatusNotFound):
			ended++
		case ctx.Err() != nil:
			return fmt.Errorf("%s cancelled, then: %w", Count(cancelled, "task"), err)
		default:
			failed = append(failed, fmt.Errorf("%s: %w", t.ID, err))
		}
	}
	text := Count(cancelled, "task") + " cancelled"
	if ended > 0 {
		text += fmt.Sprintf(", %d had ended already", ended)
	}
	if all.Next != "" {
		text += ", and there are more that match"
	}
	fmt.Fprintln(c.Out, text)
	return errors.Join(failed...)
}

// Count writes a number and its noun.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
