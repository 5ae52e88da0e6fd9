-- create stores a new task with its first pieces.
--
-- KEYS  1 task  2 batches  3 the runner's set of tasks  4 all tasks of the shard
-- ARGV  1 id  2 op  3 channel of the task  4 runner, or ''  5 slack in ms
--       6 '1' if visible  7 '1' if it has ended already  8 ttl  9 retain, in ms
--       then lists: fields (name, value), moments (kind, age in ms, detail), contents
-- reply ok | again with the task | taken
local id, op, events, runner, slack = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local visible, final, ttl, retain = next_arg(), next_arg(), next_arg(), next_arg()
local fields = list()
local moments = list()
local contents = list()

local before = redis.call('HGET', KEYS[1], 'op')
if before == op then return reply('again') end
if before then return { 'taken' } end

local at = now()
if final == '1' then ttl = retain end
-- First, because a Redis that is full refuses this write, and lets a script that has written go on.
redis.call('HSET', KEYS[1], 'op', op)
-- The list may be left from a record of this task that a failover has lost; it must not be
-- continued.
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 'version', '1', 'created', int(at), 'updated', int(at),
  'ttl', ttl, 'retain', retain, 'visible', visible,
  'batches', int(push(KEYS[2], contents, 0)), 'events', note('', moments, at),
  unpack(fields))
if runner ~= '' and final ~= '1' then redis.call('ZADD', KEYS[3], 0, id) end
redis.call('ZADD', KEYS[4], int(at), id)
redis.call('PUBLISH', events, id .. ' 1')
local task = reply('ok')
-- Last, because an expiry that is already over deletes the keys.
if final == '1' then expire(at + tonumber(ttl) + tonumber(slack)) end
return task
