package chaos

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"taskgate/internal/mcp"
)

// A checking client of SEP-2679: it declares that it takes partial results, and gets
// those of all tasks of its session on its GET stream, which it takes from gateway to
// gateway with Last-Event-ID. It counts over all of them: each task begins with 0, and
// goes on by one until its end (protocol.md 6.2). If it begins without having been
// anywhere, or has forgotten where, or hears that messages may be missing, each task begins with 0 anew.

// viewer is what such a client sees.
type viewer struct {
	judge *judge

	mu    sync.Mutex
	views map[string]*view // by task
	anew  bool             // the stream was not resumed
	since time.Time        // when the last one began that was not
	begun counts           // streams, by how they began
}

// aboutThen is within how much of a stream's beginning its gateway may take a task for one
// that has ended before.
const aboutThen = 10 * time.Second

func newViewer(j *judge) *viewer {
	return &viewer{judge: j, views: map[string]*view{}, begun: counts{}}
}

// begin says that a stream begins: after an event, or anew, as it also does where messages may be missing.
func (v *viewer) begin(anew bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.anew = anew; anew {
		v.begun["anew"]++
		v.since = time.Now()
		clear(v.views)
		return
	}
	v.begun["resumed"]++
}

// hear takes a message of the stream.
func (v *viewer) hear(data []byte) {
	var n struct {
		Method string
		Params struct {
			TaskID  string
			Seq     *int
			Content json.RawMessage
			Status  string
			Updated time.Time                  `json:"lastUpdatedAt"`
			Meta    map[string]json.RawMessage `json:"_meta"`
		}
	}
	if saysMissing(data) {
		v.begin(true)
		return
	}
	if json.Unmarshal(data, &n) != nil || n.Method != mcp.NotifyTaskPartial && n.Method != mcp.NotifyTaskStatus {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	task := v.views[n.Params.TaskID]
	if task == nil {
		task = v.judge.newView(n.Params.TaskID, byGET, 0)
		v.views[n.Params.TaskID] = task
	}
	final := n.Method == mcp.NotifyTaskStatus && (state{status: n.Params.Status}).ended()
	switch {
	case final && task.next == 0 && (v.anew || n.Params.Updated.Before(v.since.Add(aboutThen))):
		// What there was of it may have come on a stream before the last one that began
		// anew, which says nothing now.
		task.late()
	case n.Method == mcp.NotifyTaskStatus:
		task.status(n.Params.Status)
	case n.Params.Seq == nil || !strings.Contains(string(n.Params.Meta[mcp.MetaRelatedTask]), n.Params.TaskID):
		v.judge.blame("task %s: a strange partial result: %.300s", n.Params.TaskID, data)
	default:
		task.piece(*n.Params.Seq, n.Params.Content)
	}
}

// unended are the tasks of which something came, and no end yet.
func (v *viewer) unended() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	views := maps.Clone(v.views)
	maps.DeleteFunc(views, func(_ string, t *view) bool { return t.ended || t.next == 0 })
	return slices.Sorted(maps.Keys(views))
}

// judgeViewers waits until all clients have heard to the end what they have begun to
// hear, and holds that against what the upstream said.
func (c *clients) judgeViewers(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, inGoodTime)
	defer stop()
	for _, d := range c.dialects {
		l, ok := d.(*legacy)
		if !ok || l.viewer == nil {
			continue
		}
		for len(l.viewer.unended()) > 0 && wait(ctx, pollEvery/4) {
		}
		for _, id := range l.viewer.unended() {
			c.judge.blame("task %s: partial results came on a GET stream, and never their end", id)
		}
		l.viewer.mu.Lock()
		for how, n := range l.viewer.begun {
			for range n {
				c.asked.add("GET stream with partial results begun " + how)
			}
		}
		l.viewer.mu.Unlock()
	}
	j := c.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, s := range j.shows {
		r := j.tasks[id]
		switch {
		case s.way != byGET:
		case r == nil || r.end == nil:
			if err := s.checkStray(); err != nil {
				j.blamed("task %s, whose handle no client got: %v", id, err)
			}
		default:
			j.checkTask(r)
		}
	}
}
