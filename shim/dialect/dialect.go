// Package dialect spells tasks on the wire: the field names and status rules of each task dialect.
// Every function is pure; stores and callers are unknown here.
//
// A record has several spellings: [Ext] is the io.modelcontextprotocol/tasks extension of the
// modern protocol, [Legacy] the experimental tasks of 2025-11-25.
package dialect

import (
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// timestamp is ISO 8601 in UTC with milliseconds, as both dialects require for createdAt and
// lastUpdatedAt (protocol.md T19, L10).
const timestamp = "2006-01-02T15:04:05.000Z"

// object builds one JSON object by appending members.
type object struct{ b []byte }

func newObject(size int) *object { return &object{b: append(make([]byte, 0, size), '{')} }

func (o *object) key(name string) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = jsonrpc.AppendString(o.b, name)
	o.b = append(o.b, ':')
}

func (o *object) str(name, v string) {
	o.key(name)
	o.b = jsonrpc.AppendString(o.b, v)
}

func (o *object) num(name string, v int64) {
	o.key(name)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) raw(name string, v []byte) {
	o.key(name)
	o.b = append(o.b, v...)
}

func (o *object) time(name string, v time.Time) {
	o.key(name)
	o.b = append(o.b, '"')
	o.b = v.UTC().AppendFormat(o.b, timestamp)
	o.b = append(o.b, '"')
}

func (o *object) done() []byte { return append(o.b, '}') }

// task appends the members that every dialect shares, with the dialect's own names for the two
// durations.
func (o *object) task(t shim.Task, ttl, poll string) {
	o.str("taskId", string(t.ID))
	o.str("status", string(t.Status))
	if t.StatusMessage != "" {
		o.str("statusMessage", t.StatusMessage)
	}
	o.time("createdAt", t.CreatedAt)
	o.time("lastUpdatedAt", t.UpdatedAt)
	o.num(ttl, max(1, t.TTL.Milliseconds()))
	if ms := t.PollInterval.Milliseconds(); ms > 0 {
		o.num(poll, ms)
	}
}
