-- index puts a task on a list, and has the list live at least as long as the task.
--
-- KEYS  1 the list
-- ARGV  1 id  2 creation time in ms, '' for now  3 how long after it, in ms
-- reply ok, how many are on the list
local id, created, life = next_arg(), next_arg(), tonumber(next_arg())
local time = now()
local since = tonumber(created) or time
redis.call('ZADD', KEYS[1], 'NX', int(since), id)
local left = redis.call('PTTL', KEYS[1])
if left < 0 or time + left < since + life then
  redis.call('PEXPIREAT', KEYS[1], int(since + life))
end
return { 'ok', int(redis.call('ZCARD', KEYS[1])) }
