-- session_enter adds a client session to the sets of sessions, unless its owner, or all owners
-- together, have as many as they may have. Then it names the one that has been unused for longest, if
-- that makes room for another.
--
-- KEYS  1 the sessions  2 those of its owner
-- ARGV  1 id  2 how many there may be  3 how many of one owner; 0 is any number
--       4 ms without use after which a session makes room  5 ms to live of the owner's set
-- reply ok; again and the session that makes room; full, and '1' if the bound of the owner is reached
local id, max, most, rest, life = next_arg(), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
local at = now()
local function refusal(i, limit, whose)
  if redis.call('ZCARD', KEYS[i]) < limit then return end
  local oldest = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', '(' .. int(at - rest), 'LIMIT', 0, 1)[1]
  if not oldest then return { 'full', whose } end
  return { 'again', oldest }
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(at - life)) -- that of all is swept
if not redis.call('ZSCORE', KEYS[1], id) then
  local refused = most > 0 and refusal(2, most, '1') or refusal(1, max, '')
  if refused then return refused end
end
redis.call('ZADD', KEYS[1], int(at), id)
redis.call('ZADD', KEYS[2], int(at), id)
redis.call('PEXPIRE', KEYS[2], int(life))
return { 'ok' }
