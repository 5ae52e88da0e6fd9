-- upstream_hold notes that a replica needs an upstream session, or no longer does.
--
-- KEYS  1 upstream session
-- ARGV  1 replica  2 ms it needs it for; 0 lets go  3 ms to live
-- reply ok, none
local replica, need, ttl = next_arg(), tonumber(next_arg()), next_arg()
if redis.call('EXISTS', KEYS[1]) == 0 then return { 'none' } end
if need > 0 then
  redis.call('HSET', KEYS[1], 'h:' .. replica, int(now() + need))
else
  redis.call('HDEL', KEYS[1], 'h:' .. replica)
end
redis.call('PEXPIRE', KEYS[1], ttl)
return { 'ok' }
