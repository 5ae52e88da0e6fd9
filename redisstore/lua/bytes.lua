-- What the scripts of a list begin with that count how many bytes its tasks take. KEYS[2] has
-- the bytes by task, and their sum; KEYS[3] until when each task is counted. The sum changes
-- with the entries, in one step, and an entry is set and never added to: so the sum is right
-- if the entries are, and each entry ends by itself.

-- uncount takes out a task.
local function uncount(id)
  local bytes = redis.call('HGET', KEYS[2], id)
  if bytes then
    redis.call('HDEL', KEYS[2], id)
    redis.call('HINCRBY', KEYS[2], 'sum', int(-tonumber(bytes)))
  end
  redis.call('ZREM', KEYS[3], id)
end
-- uncount_ended takes out tasks that have ended by now, so many that it does not take long.
local function uncount_ended(time)
  local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', int(time), 'LIMIT', 0, 1000)
  for i = 1, #ended do uncount(ended[i]) end
end
-- count says how many bytes a task takes, and until when in ms.
local function count(id, bytes, ends, time)
  local before = tonumber(redis.call('HGET', KEYS[2], id) or '0')
  redis.call('HSET', KEYS[2], id, bytes)
  redis.call('HINCRBY', KEYS[2], 'sum', int(tonumber(bytes) - before))
  redis.call('ZADD', KEYS[3], int(ends), id)
  for i = 2, 3 do
    local left = redis.call('PTTL', KEYS[i])
    if left < 0 or time + left < ends then redis.call('PEXPIREAT', KEYS[i], int(ends)) end
  end
end
