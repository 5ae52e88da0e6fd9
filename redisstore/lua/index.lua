-- index puts a task on a list, and has the list live at least as long as the task.
--
-- KEYS  1 the list  2 the bytes of its tasks  3 until when they count
-- ARGV  1 id  2 creation time in ms, '' for now  3 how long after it, in ms
--       4 youth in ms  5 bytes the task takes, '' if they are not counted  6 how long after
--       its creation they are, in ms  7 how many all may take, 0 for any number: then a task
--       that is not counted yet and does not fit is refused  8 ms between two looks at
--       what is counted of a list that is full
-- reply ok, how many are on the list, how many of them are past their youth; full, '1' if it
--       is time for a look, the same number
--
-- The score is in microseconds, so that tasks of one ms are in order as well.
local id, created, life, youth = next_arg(), next_arg(), tonumber(next_arg()), tonumber(next_arg())
local bytes, kept, room, pause = next_arg(), next_arg(), tonumber(next_arg()), tonumber(next_arg())
local t = redis.call('TIME')
local score = tonumber(t[1]) * 1000000 + tonumber(t[2])
local time = math.floor(score / 1000)
local since = tonumber(created) or time
if created ~= '' then score = since * 1000 end
local function old()
  return int(redis.call('ZCOUNT', KEYS[1], '-inf', int((time - youth) * 1000)))
end
if bytes ~= '' then
  uncount_ended(time)
  local was = redis.call('HMGET', KEYS[2], 'sum', 'looked', id)
  if room > 0 and not was[3] and tonumber(was[1] or '0') + tonumber(bytes) > room then
    local look = time - tonumber(was[2] or '0') >= pause
    if look then redis.call('HSET', KEYS[2], 'looked', int(time)) end
    return { 'full', look and '1' or '', old() }
  end
  count(id, bytes, since + tonumber(kept), time)
end
redis.call('ZADD', KEYS[1], 'NX', int(score), id)
local left = redis.call('PTTL', KEYS[1])
if left < 0 or time + left < since + life then
  redis.call('PEXPIREAT', KEYS[1], int(since + life))
end
return { 'ok', int(redis.call('ZCARD', KEYS[1])), old() }
