-- beat says that a replica is alive until a time of the store's clock.
--
-- KEYS  1 the replicas
-- ARGV  1 replica  2 ttl in ms; 0 for goodbye, which keeps the ttl it had, because
--       others count in it how long the replica has been gone (5s if it had none)
-- reply ok
local replica, ttl = next_arg(), tonumber(next_arg())
local expires = now() + ttl
if ttl == 0 then
  local before = redis.call('HGET', KEYS[1], replica)
  ttl = before and tonumber(string.match(before, ' (%d+)$')) or 5000
end
redis.call('HSET', KEYS[1], replica, int(expires) .. ' ' .. int(ttl))
return { 'ok' }
