-- adopt moves one task from a replica that is gone to another.
--
-- KEYS  1 task  2 the old runner's set of tasks  3 the new runner's
-- ARGV  1 id  2 old runner  3 new runner  4 op  5 channel of the task
--       6 the old runner's inbox  7 ' statuses of a task that has not ended '
--       8 '1' if the upstream does not matter  9 the time in ms from which on it is too
--       late: the old runner may be back
--       then lists: upstreams, fields to read back, moments (kind, age in ms, detail)
-- reply ok with the task, none (nothing left to adopt), skip (another upstream, or late), unread with
--       the reason: the record is of another type, or a newer version has stored it
local id, old, new, op = next_arg(), next_arg(), next_arg(), next_arg()
local events, inbox, open, any = next_arg(), next_arg(), next_arg(), next_arg()
local deadline = tonumber(next_arg())
local upstreams = list()
local fields = list()
local moments = list()

local was = redis.pcall('HMGET', KEYS[1], 'status', 'lease', 'upstream', 'adoptop', 'format')
if was.err then return { 'unread', was.err } end
if (tonumber(was[5] or '0') or math.huge) > format then return { 'unread', 'a newer version has stored it' } end
if was[1] and was[4] == op and holder(was[2]) == new then return reply('ok', fields) end
if not was[1] or not within(open, was[1]) or holder(was[2]) ~= old then
  redis.call('ZREM', KEYS[2], id)
  return { 'none' }
end
for _, name in ipairs(upstreams) do
  if name == was[3] then any = '1' end
end
local time = now()
if any ~= '1' or time >= deadline then return { 'skip' } end

local adoption = tonumber(string.match(was[2], '#(%d+)$')) + 1
redis.call('HSET', KEYS[1], 'lease', new .. '#' .. int(adoption), 'adoptop', op, 'updated', int(time),
  'events', note(redis.call('HGET', KEYS[1], 'events') or '', moments, time))
redis.call('HDEL', KEYS[1], 'order')
redis.call('ZREM', KEYS[2], id)
redis.call('ZADD', KEYS[3], 0, id)
local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('PUBLISH', events, id .. ' ' .. int(version))
redis.call('PUBLISH', inbox, id .. ' ' .. int(version))
return reply('ok', fields)
