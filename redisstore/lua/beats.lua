-- beats reads the heartbeats of all replicas, and the time, at one moment.
--
-- KEYS  1 the replicas
-- ARGV  none
-- reply ok, the time in ms, then each replica and its entry
local out = { 'ok', int(now()) }
for _, word in ipairs(redis.call('HGETALL', KEYS[1])) do out[#out + 1] = word end
return out
