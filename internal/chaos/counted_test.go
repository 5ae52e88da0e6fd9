package chaos

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"taskgate/internal/mcp"
)

// counter is how far a client of 2025-11-25 has come with messages that are numbered: the progress of a
// call, or what the upstream says outside of calls. Over all of the client's streams each comes once and in order, or the
// stream says before that messages may be missing. A nil one counts nothing.
type counter struct {
	judge   *judge
	heard   *tally // for the summary
	kind    string // there
	what    string // by which messages of this kind are told from others
	next    int
	excused bool // the stream has said that messages may be missing
}

// outside is the logger of what the upstream says outside of calls.
const outside = "outside"

// hear takes a message. What is said outside of calls is numbered for each session with the upstream, and counts from
// the first one on that comes.
func (n *counter) hear(data []byte) {
	what, no, ok := numbered(data)
	switch {
	case n == nil:
	case saysMissing(data):
		n.heard.add("heard that messages may be missing")
		n.excused = true
	case !ok:
	case strings.HasPrefix(what, outside) && strings.HasPrefix(n.what, outside) && what != n.what:
		n.what, n.next, n.excused = what, no+1, false
	case what == n.what:
		if no != n.next && !(n.excused && no > n.next) {
			n.judge.blame("%s: number %d came in place of %d (messages may be missing: %t)", what, no, n.next, n.excused)
		}
		n.next, n.excused = no+1, false
		n.heard.add("heard in order: " + n.kind)
	}
}

// numbered reads a message that is numbered: of what, and its number.
func numbered(data []byte) (what string, no int, ok bool) {
	var m struct {
		Method string
		Params struct {
			ProgressToken string
			Progress      float64
			Logger, Data  string
		}
	}
	if json.Unmarshal(data, &m) != nil {
		return "", 0, false
	}
	switch p := m.Params; {
	case m.Method == mcp.NotifyProgress:
		return p.ProgressToken, int(p.Progress), p.Progress == math.Trunc(p.Progress) // others are the gateway's own
	case m.Method == mcp.NotifyMessage && p.Logger == outside:
		session, number, _ := strings.Cut(p.Data, " ")
		no, err := strconv.Atoi(number)
		return outside + " " + session, no, err == nil
	}
	return "", 0, false
}

// saysMissing reports whether a message says that messages may be missing here.
func saysMissing(data []byte) bool {
	var m struct {
		Method string
		Params struct{ Logger string }
	}
	return json.Unmarshal(data, &m) == nil && m.Method == mcp.NotifyMessage && m.Params.Logger == "taskgate"
}
