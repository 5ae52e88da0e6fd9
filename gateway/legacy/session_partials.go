package legacy

import (
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Partial results go out on the GET stream of a session whose client takes them (SEP-2679). They
// stay in the store until the stream takes them. Each goes out through the log of the stream, from
// which a client that resumes gets what it has missed, and the next stream goes on after that. So a
// client that resumes finds neither gap nor repeat in seq (P4). A stream that is not resumed begins
// each running task anew, from 0, and leaves out those that have ended (P2).

// seqFilter says which messages of the log of a GET stream go to a client that takes partial
// results (P4). A nil filter lets everything through.
type seqFilter struct {
	next  map[shim.ID]int64 // the first seq to send next
	from  map[shim.ID]int64 // the first seq that the log lacks
	fresh map[shim.ID]bool  // tasks whose partial results begin anew after last, and are left out if they have ended
	// unsent are the fresh tasks that only the log names, in their order there.
	unsent []shim.ID
	anew   bool  // the client has begun with 0, now or since a mark in the log
	last   int64 // the last message that was in the log when the stream began
}

// anewMark in the log of a GET stream says that its client begins anew, and counts from 0 from
// there on. It stays in the log.
var anewMark = []byte{}

// newSeqFilter finds in the log how far a client has come that resumes the stream after message no.
// For any other client these tasks begin anew, and so do tasks with unsent messages in the log: the
// record may have forgotten them, since their end is in the log.
func newSeqFilter(log []logEntry, no int64, resumes bool, tasks []shim.ID) *seqFilter {
	c := &seqFilter{
		next: make(map[shim.ID]int64), from: make(map[shim.ID]int64), fresh: make(map[shim.ID]bool), anew: !resumes,
	}
	if !resumes {
		for _, id := range tasks {
			c.fresh[id] = true
		}
		for _, m := range log {
			id, _, ok := partialOf(m.message)
			if !ok {
				id, _ = statusOf(m.message)
			}
			if id != "" && !c.fresh[id] {
				c.fresh[id] = true
				c.unsent = append(c.unsent, id)
			}
		}
		return c
	}
	for _, m := range log {
		if m.message != nil && len(m.message) == 0 && m.no <= no {
			clear(c.next)
			clear(c.from)
			c.anew = true
		}
		id, seq, ok := partialOf(m.message)
		if !ok {
			continue
		}
		c.from[id] = c.nextSeq(c.from[id], seq)
		if m.no <= no {
			c.next[id] = c.nextSeq(c.next[id], seq)
		}
	}
	return c
}

// nextSeq is the seq that comes after seq in a log where next was due. After a mark, only a seq
// that continues counts; a log without a mark begins later than its client did.
func (c *seqFilter) nextSeq(next, seq int64) int64 {
	if c.anew && seq != next {
		return next
	}
	return max(next, seq+1)
}

// isDue reports whether a message of the log is to be sent.
//
// Of the messages that were in the log when the stream began, a partial result is left out if its
// task begins anew, or if the client has it. A status is left out if its task begins anew: it comes
// again after the partial results.
//
// A later partial result is sent only if its seq follows the last one sent: another replica that
// had the stream may go on with it for a moment.
//
// A client that began anew gets partial results from seq 0 on, since it may have lost what was sent
// before. It hears of each end once.
func (c *seqFilter) isDue(no int64, message []byte) bool {
	if c == nil {
		return true
	}
	before := no <= c.last
	id, seq, ok := partialOf(message)
	if !ok {
		id, _ := statusOf(message)
		return !before || !c.fresh[id]
	}
	if before && (c.fresh[id] || seq < c.next[id]) || (!before || c.anew) && seq != c.next[id] {
		return false
	}
	c.next[id] = seq + 1
	return true
}

// partialOf reads a message that is a partial result.
func partialOf(message []byte) (id shim.ID, seq int64, ok bool) {
	if method, _ := jsonrpc.GetString(message, "method"); method != mcp.NotifyTaskPartial {
		return "", 0, false
	}
	task, _ := jsonrpc.GetString(message, "params", "taskId")
	raw, _ := jsonrpc.Get(message, "params", "seq")
	seq, err := strconv.ParseInt(string(raw), 10, 64)
	return shim.ID(task), seq, err == nil
}

// statusOf returns the task and the status that a message tells; "" for any other message.
func statusOf(message []byte) (shim.ID, shim.Status) {
	if method, _ := jsonrpc.GetString(message, "method"); method != mcp.NotifyTaskStatus {
		return "", ""
	}
	task, _ := jsonrpc.GetString(message, "params", "taskId")
	status, _ := jsonrpc.GetString(message, "params", "status")
	return shim.ID(task), shim.Status(status)
}
