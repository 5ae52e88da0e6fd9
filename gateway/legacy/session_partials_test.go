package legacy

import (
	"fmt"
	"slices"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// A client that begins anew where the last stream left partial results and the end of a task
// in the log gets both from the beginning, and not the end alone: the record has forgotten
// the task by then.
func TestUnsentEndBeginsAnew(t *testing.T) {
	message := func(method, params string) []byte {
		return jsonrpc.AppendNotification(nil, method, []byte(params))
	}
	log := []logEntry{
		{4, message(mcp.NotifyTaskPartial, `{"taskId":"forgotten","seq":3}`)},
		{5, message(mcp.NotifyTaskStatus, `{"taskId":"forgotten","status":"completed"}`)},
		{6, message(mcp.NotifyTaskStatus, `{"taskId":"named","status":"completed"}`)},
		{7, message(mcp.NotifyToolsListChanged, `{}`)},
	}
	c := newSeqFilter(log, 0, false, []shim.ID{"named"})
	c.noteFloor(8)
	if !slices.Equal(c.unsent, []shim.ID{"forgotten"}) {
		t.Errorf("followed besides: %s", c.unsent)
	}
	for i, want := range []bool{false, false, false, true} {
		if got := c.isDue(log[i].no, log[i].message); got != want {
			t.Errorf("%s is sent from the log: %t", log[i].message, got)
		}
	}
	for seq := range int64(2) {
		m := message(mcp.NotifyTaskPartial, fmt.Sprintf(`{"taskId":"forgotten","seq":%d}`, seq))
		if !c.isDue(9+seq, m) {
			t.Errorf("%s is not sent", m)
		}
	}
}
