-- adopt moves one task from a replica that is gone to another.
--
-- KEYS  1 task  2 the old runner's set of tasks  3 the new runner's
-- ARGV  1 id  2 old runner  3 new runner  4 op  5 channel of the task
--       6 the old runner's inbox  7 ' statuses of a task that has not ended '
--       8 '1' if the upstream does not matter
--       then lists: upstreams, fields to read back
-- reply ok with the task, none (nothing left to adopt), skip (another upstream)
local id, old, new, op = next_arg(), next_arg(), next_arg(), next_arg()
local events, inbox, open, any = next_arg(), next_arg(), next_arg(), next_arg()
local upstreams = list()
local fields = list()

local was = redis.call('HMGET', KEYS[1], 'status', 'lease', 'upstream', 'adoptop')
if was[1] and was[4] == op and holder(was[2]) == new then return reply('ok', fields) end
if not was[1] or not within(open, was[1]) or holder(was[2]) ~= old then
  redis.call('SREM', KEYS[2], id)
  return { 'none' }
end
for _, name in ipairs(upstreams) do
  if name == was[3] then any = '1' end
end
if any ~= '1' then return { 'skip' } end

local adoption = tonumber(string.match(was[2], '#(%d+)$')) + 1
redis.call('HSET', KEYS[1], 'lease', new .. '#' .. int(adoption), 'adoptop', op, 'updated', int(now()))
redis.call('SREM', KEYS[2], id)
redis.call('SADD', KEYS[3], id)
local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('PUBLISH', events, id .. ' ' .. int(version))
redis.call('PUBLISH', inbox, id .. ' ' .. int(version))
return reply('ok', fields)
