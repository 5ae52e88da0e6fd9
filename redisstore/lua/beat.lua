-- beat says that a replica is alive until a time of the store's clock.
--
-- KEYS  1 the replicas
-- ARGV  1 replica  2 ttl in ms; 0 for goodbye, which keeps the ttl it had, because
--       others count in it how long the replica has been gone (5s if it had none)
--       3 channel of the goodbyes
-- reply ok, the time in ms, the entry that it had, the entry that it has now
local replica, ttl, events = next_arg(), tonumber(next_arg()), next_arg()
local leaves = ttl == 0
local before = redis.call('HGET', KEYS[1], replica)
local time = now()
local expires = time + ttl
if leaves then
  ttl = before and tonumber(string.match(before, ' (%d+)')) or 5000
end
local entry = int(expires) .. ' ' .. int(ttl) .. ' ' .. int(time)
redis.call('HSET', KEYS[1], replica, entry)
if leaves then redis.call('PUBLISH', events, replica) end
return { 'ok', int(time), before or '', entry }
