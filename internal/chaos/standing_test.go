package chaos

import (
	"context"
	"strings"
	"time"
)

// longestStand is how long after the end of all that goes wrong a task may still be open:
// by then whoever waits for something has looked for it again.
const longestStand = time.Minute

// openRecords lists the records of tasks that have not ended, also of those whose handle
// never came to a client: key, status, whether it is visible, tool, lease.
const openRecords = `
local open = {}
for _, key in ipairs(redis.call('KEYS', 'tg:{*}:t:*')) do
  local r = redis.call('HMGET', key, 'status', 'visible', 'tool', 'lease')
  if r[1] == 'working' or r[1] == 'input_required' then
    open[#open + 1] = table.concat({key, r[1], 'visible=' .. tostring(r[2]), tostring(r[3]), tostring(r[4])}, ' ')
  end
end
return open`

// parked is what the record of a call shows that was handed back with its questions. Its
// user may come back as long as it is kept: that is its reason to be open.
const parked = " input_required visible=0 "

// open are the records that have not ended and have no reason for that.
func (f *fleet) open() []string {
	if f.folder != "" {
		return f.openInFolder()
	}
	var list []string
	for _, r := range f.store().Do("eval", openRecords, 0).([]any) {
		if s := r.(string); !strings.Contains(s, parked) {
			list = append(list, s)
		}
	}
	return list
}

// noneStands waits, when everything is well again, until nothing is open in the store.
// The upstreams are done within seconds, and questions are answered or run out of time.
func (c *clients) noneStands(ctx context.Context) {
	begin := time.Now()
	ctx, stop := context.WithTimeout(ctx, longestStand)
	defer stop()
	list := c.fleet.open()
	for len(list) > 0 && wait(ctx, pollEvery) {
		list = c.fleet.open()
	}
	for _, r := range list {
		c.judge.blame("it stands still, %s after everything was well again: %s", time.Since(begin).Round(time.Second), r)
	}
}
