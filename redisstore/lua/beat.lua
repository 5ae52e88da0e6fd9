-- beat says that a replica is alive until a time of the store's clock.
--
-- KEYS  1 the replicas
-- ARGV  1 replica  2 ttl in ms; 0 for goodbye, which keeps the ttl it had, because
--       others count in it how long the replica has been gone (5s if it had none)
--       3 channel of the goodbyes
-- reply ok, the time in ms
local replica, ttl, events = next_arg(), tonumber(next_arg()), next_arg()
local leaves = ttl == 0
local time = now()
local expires = time + ttl
if leaves then
  local before = redis.call('HGET', KEYS[1], replica)
  ttl = before and tonumber(string.match(before, ' (%d+)$')) or 5000
end
redis.call('HSET', KEYS[1], replica, int(expires) .. ' ' .. int(ttl))
if leaves then redis.call('PUBLISH', events, replica) end
return { 'ok', int(time) }
