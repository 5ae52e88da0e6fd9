-- session_enter puts a client session among those that exist. Where there are as
-- many as there may be, the one that has not been used for longest makes room,
-- if no replica has been busy with it lately.
--
-- KEYS  1 the sessions
-- ARGV  1 id  2 how many there may be  3 ms after which one counts as idle
-- reply ok and the ids that made room; full
local id, max, quiet = next_arg(), tonumber(next_arg()), tonumber(next_arg())
local at = now()
local out = { 'ok' }
if not redis.call('ZSCORE', KEYS[1], id) then
  local over = redis.call('ZCARD', KEYS[1]) + 1 - max
  if over > 0 then
    local oldest = redis.call('ZRANGE', KEYS[1], 0, over - 1, 'WITHSCORES')
    if tonumber(oldest[#oldest]) > at - quiet then return { 'full' } end
    for i = 1, #oldest, 2 do
      redis.call('ZREM', KEYS[1], oldest[i])
      out[#out + 1] = oldest[i]
    end
  end
end
redis.call('ZADD', KEYS[1], int(at), id)
return out
