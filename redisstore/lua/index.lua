-- index puts a task on a list, and lets the list live at least as long as the task.
--
-- KEYS  1 the list
-- ARGV  1 id  2 creation time in ms, '' for now  3 how long after it, in ms
-- reply ok, how many tasks are on the list
--
-- The score is in microseconds, so that tasks of one ms are in order as well.
local id, created, life = next_arg(), next_arg(), tonumber(next_arg())
local t = redis.call('TIME')
local score = tonumber(t[1]) * 1000000 + tonumber(t[2])
local time = math.floor(score / 1000)
local since = tonumber(created) or time
if created ~= '' then score = since * 1000 end
redis.call('ZADD', KEYS[1], 'NX', int(score), id)
local left = redis.call('PTTL', KEYS[1])
if left < 0 or time + left < since + life then
  redis.call('PEXPIREAT', KEYS[1], int(since + life))
end
return { 'ok', int(redis.call('ZCARD', KEYS[1])) }
