-- upstream_use notes that a client of a server uses a session, or uses it no more.
--
-- KEYS  1 session
-- ARGV  1 ms to live from a use on  2 who  3 '1' if it uses the session
-- reply ok, and '1' if the client of the session has ended it; none
local ttl, who, uses = next_arg(), next_arg(), next_arg()
if redis.call('EXISTS', KEYS[1]) == 0 then return { 'none' } end
redis.call('PEXPIRE', KEYS[1], ttl)
if uses ~= '' then
  redis.call('HSET', KEYS[1], 'by:' .. who, int(now()))
else
  redis.call('HDEL', KEYS[1], 'by:' .. who)
end
return { 'ok', redis.call('HGET', KEYS[1], 'over') or '' }
