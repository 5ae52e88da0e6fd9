package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// width is that of a line of JSON, margin the space before it.
const (
	width  = 100
	margin = "           "
)

// palette holds the terminal codes for each kind of text; all are empty without a terminal.
type palette struct{ title, dim, out, in, off string }

// colours returns the palette for a file. It respects NO_COLOR.
func colours(f *os.File) palette {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" {
		return palette{}
	}
	return palette{title: "\x1b[1m", dim: "\x1b[2m", out: "\x1b[36m", in: "\x1b[32m", off: "\x1b[0m"}
}

// timeline prints messages as they come.
type timeline struct {
	out   io.Writer
	ink   palette
	begin time.Time
	// shownOut and shownIn say that _meta was shown, by the client and by the gateway.
	shownOut, shownIn bool
	// column is where live text goes on; 0 at its start.
	column int
}

// live prints text as it comes, after the time at which it began.
func (l *timeline) live(text string) {
	if l.column == 0 {
		fmt.Fprintf(l.out, "%s%8.2fs%s  %sclient <-- gateway%s  %snotifications/tasks/partial, as they come:%s\n%s",
			l.ink.dim, time.Since(l.begin).Seconds(), l.ink.off, l.ink.in, l.ink.off, l.ink.dim, l.ink.off, margin)
	}
	if l.column+len(text) > width {
		fmt.Fprintf(l.out, "\n%s", margin)
		l.column = 0
	}
	fmt.Fprint(l.out, text)
	l.column += len(text)
}

// title announces what comes next.
func (l *timeline) title(text string) {
	fmt.Fprintf(l.out, "\n%s%s%s\n\n", l.ink.title, text, l.ink.off)
}

// message prints one message: its time, its direction, its headers and itself.
func (l *timeline) message(m taskclient.Message) {
	if l.column > 0 {
		fmt.Fprintln(l.out)
		l.column = 0
	}
	ink, arrow, what := l.ink.in, "client <-- gateway", fmt.Sprintf("HTTP %d", m.Status)
	if m.Sent {
		ink, arrow, what = l.ink.out, "client --> gateway", headers(m)
	}
	fmt.Fprintf(l.out, "%s%8.2fs%s  %s%s%s  %s%s%s\n", l.ink.dim, time.Since(l.begin).Seconds(), l.ink.off,
		ink, arrow, l.ink.off, l.ink.dim, what, l.ink.off)
	fmt.Fprintf(l.out, "%s%s\n", margin, strings.ReplaceAll(l.layout(m), "\n", "\n"+margin))
}

// headers returns those of a request that mirror its body.
func headers(m taskclient.Message) string {
	var list []string
	for _, name := range []string{"MCP-Protocol-Version", mcp.HeaderMethod, mcp.HeaderName} {
		if value := m.Header.Get(name); value != "" {
			list = append(list, name+": "+value)
		}
	}
	return strings.Join(list, ", ")
}

// layout returns the message for reading. A peer repeats the same facts about itself in _meta, so
// they are shown once for each peer.
func (l *timeline) layout(m taskclient.Message) string {
	shown := &l.shownIn
	if m.Sent {
		shown = &l.shownOut
	}
	hide := ""
	if *shown {
		hide = "_meta"
	}
	*shown = *shown || bytes.Contains(m.Body, []byte(`"_meta"`))
	return layout(m.Body, "", hide)
}

// layout writes a JSON value on one line if it fits, and else with as many members to a line as
// fit, in the order and the spelling they came in. It leaves out the value of the member hide.
func layout(raw json.RawMessage, indent, hide string) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	open, err := dec.Token()
	delim, ok := open.(json.Delim)
	if err != nil || !ok || !json.Valid(raw) {
		return string(raw)
	}
	members := layoutMembers(dec, delim == '{', indent+"  ", hide)
	closing := map[json.Delim]string{'{': "}", '[': "]"}[delim]
	if line := delim.String() + strings.Join(members, ", ") + closing; fits(line, indent) {
		return line
	}
	return delim.String() + "\n" + fill(members, indent+"  ") + "\n" + indent + closing
}

// fits reports whether a text is one line within the width.
func fits(text, indent string) bool {
	return !strings.Contains(text, "\n") && len(indent)+len(text) <= width
}

// fill puts as many members on a line as fit.
func fill(members []string, indent string) string {
	var lines []string
	line := ""
	for i, m := range members {
		if i < len(members)-1 {
			m += ","
		}
		switch {
		case line == "":
			line = m
		case fits(line+" "+m, indent):
			line += " " + m
		default:
			lines = append(lines, indent+line)
			line = m
		}
	}
	return strings.Join(append(lines, indent+line), "\n")
}

// layoutMembers reads the members of an object, or the elements of an array, after the opening
// bracket.
func layoutMembers(dec *json.Decoder, object bool, indent, hide string) []string {
	var members []string
	for dec.More() {
		var name string
		if object {
			token, err := dec.Token()
			if err != nil {
				return members
			}
			name = fmt.Sprintf("%q: ", token)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return members
		}
		text := layout(value, indent, hide)
		if hide != "" && name == fmt.Sprintf("%q: ", hide) {
			text = "{...}"
		}
		members = append(members, name+text)
	}
	return members
}
