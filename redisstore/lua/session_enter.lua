-- session_enter puts a client session among those that exist. Where there are as
-- many as there may be, those that have not been used for longest have to make room
-- first, if no replica has been busy with them lately.
--
-- KEYS  1 the sessions
-- ARGV  1 id  2 how many there may be  3 ms after which one counts as idle
--       then list: those that have made room
-- reply ok; room and the ids that have to make room; full
local id, max, quiet = next_arg(), tonumber(next_arg()), tonumber(next_arg())
local gone = list()
local at = now()
for i = 1, #gone do redis.call('ZREM', KEYS[1], gone[i]) end
if not redis.call('ZSCORE', KEYS[1], id) then
  local over = redis.call('ZCARD', KEYS[1]) + 1 - max
  if over > 0 then
    local oldest = redis.call('ZRANGE', KEYS[1], 0, over - 1, 'WITHSCORES')
    if tonumber(oldest[#oldest]) > at - quiet then return { 'full' } end
    local out = { 'room' }
    for i = 1, #oldest, 2 do out[#out + 1] = oldest[i] end
    return out
  end
end
redis.call('ZADD', KEYS[1], int(at), id)
return { 'ok' }
