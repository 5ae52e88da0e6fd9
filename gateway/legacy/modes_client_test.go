package legacy_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// gatherer is a client that does what SEP-1905 wants of one (A11): it takes blocks from
// any response, in any order, notes those that come again, sees where some are missing,
// and puts them in order.
type gatherer struct {
	t       *testing.T
	task    shim.ID
	blocks  map[int64]string
	repeats []int64
	over    bool
}

func newGatherer(t *testing.T) *gatherer { return &gatherer{t: t, blocks: map[int64]string{}} }

// take reads responses.
func (g *gatherer) take(msgs ...[]byte) {
	g.t.Helper()
	for _, text := range msgs {
		m, err := jsonrpc.Parse(text)
		if err != nil || m.Kind != jsonrpc.Result {
			g.t.Fatalf("no result: %s", text)
		}
		for _, path := range [][]string{{"task", "taskId"}, {"_meta", mcp.MetaRelatedTask, "taskId"}} {
			if id, ok := jsonrpc.GetString(m.Result, path...); ok {
				g.task = shim.ID(id)
			}
		}
		list, _ := jsonrpc.Get(m.Result, "partial-content")
		for b := range jsonrpc.Elements(list) {
			g.add(b)
		}
		if complete, _ := jsonrpc.Get(m.Result, "isComplete"); string(complete) == "true" {
			g.over = true
		}
	}
}

func (g *gatherer) add(block json.RawMessage) {
	g.t.Helper()
	raw, _ := jsonrpc.Get(block, "seqNr")
	no, err := strconv.ParseInt(string(raw), 10, 64)
	plain, failed := jsonrpc.Delete(block, "seqNr")
	if err != nil || no < 1 || failed != nil {
		g.t.Fatalf("no numbered block: %s", block)
	}
	if was, known := g.blocks[no]; known {
		if g.repeats = append(g.repeats, no); was != string(plain) {
			g.t.Errorf("%d is %s, and was %s", no, plain, was)
		}
	}
	g.blocks[no] = string(plain)
}

// numbers are those of the blocks that it has.
func (g *gatherer) numbers() []int64 { return slices.Sorted(maps.Keys(g.blocks)) }

// highest is the last of them.
func (g *gatherer) highest() int64 { return slices.Max(append(g.numbers(), 0)) }

// gap is the number after which the first block is missing.
func (g *gatherer) gap() (after int64, missing bool) {
	for after < g.highest() && g.blocks[after+1] != "" {
		after++
	}
	return after, after < g.highest()
}

// merged wants all blocks, in order, to be the content of the task's result (A12).
func (g *gatherer) merged(c *taskClient, at *legacyServer) {
	g.t.Helper()
	var list []string
	for _, no := range g.numbers() {
		list = append(list, g.blocks[no])
	}
	content, _ := jsonrpc.Get(c.do(at, mcp.MethodTasksResult, `{"taskId":"`+string(g.task)+`"}`), "content")
	if got := "[" + strings.Join(list, ",") + "]"; !g.over || got != string(content) {
		g.t.Errorf("complete: %t; merged %s are not the content %s", g.over, got, content)
	}
}

// heardEvent is an event of a stream.
type heardEvent struct{ id, data string }

// events are those that a stream has had so far.
func (a *hearing) events() (list []heardEvent) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	for part := range strings.SplitSeq(a.w.body.String(), "\n\n") {
		e, some := heardEvent{}, false
		for line := range strings.Lines(part) {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "id:"); ok {
				e.id, some = strings.TrimSpace(rest), true
			}
			if rest, ok := strings.CutPrefix(line, "data:"); ok {
				e.data, some = strings.TrimSpace(rest), true
			}
		}
		if some {
			list = append(list, e)
		}
	}
	return list
}
