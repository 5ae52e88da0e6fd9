-- session_enter adds a client session to the sets of sessions, unless its owner, or all owners
-- together, have as many as they may have.
--
-- KEYS  1 the sessions  2 those of its owner
-- ARGV  1 id  2 how many there may be  3 how many of one owner; 0 is any number
--       4 ms without use after which a session has ended
-- reply ok; full, and '1' if the bound of the owner is reached
local id, max, most, life = next_arg(), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
local at = now()
local function full(i, limit)
  return redis.call('ZCOUNT', KEYS[i], int(at - life), '+inf') >= limit
end
if not redis.call('ZSCORE', KEYS[1], id) then
  if most > 0 and full(2, most) then return { 'full', '1' } end
  if full(1, max) then return { 'full', '' } end
end
redis.call('ZADD', KEYS[1], int(at), id)
redis.call('ZADD', KEYS[2], int(at), id)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(at - life))
redis.call('PEXPIRE', KEYS[2], int(life))
return { 'ok' }
