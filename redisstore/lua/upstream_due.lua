-- upstream_due keeps the set of the sessions with a server, by when each is to be looked at, and finds those that are due.
-- These are due again after a while, if whoever looks at them fails.
--
-- KEYS  1 set
-- ARGV  1 how many to find  2 ms after which they are due again  3 ms for which the set is kept
--       then the list of those to look at (name, in how many ms), and that of those that are gone (name, the time that a
--       search has given it)
-- reply ok, the time that those found have been given, and their names
local n, again, ttl = tonumber(next_arg()), tonumber(next_arg()), next_arg()
local look, gone, at = list(), list(), now()
for i = 1, #look, 2 do redis.call('ZADD', KEYS[1], int(at + tonumber(look[i + 1])), look[i]) end
for i = 1, #gone, 2 do
  if redis.call('ZSCORE', KEYS[1], gone[i]) == gone[i + 1] then redis.call('ZREM', KEYS[1], gone[i]) end
end
local found = { 'ok', int(at + again) }
if n > 0 then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(at), 'LIMIT', 0, n)) do
    redis.call('ZADD', KEYS[1], int(at + again), name)
    found[#found + 1] = name
  end
end
redis.call('PEXPIRE', KEYS[1], ttl)
return found
