-- running lists tasks of a shard that a replica runs.
--
-- KEYS  1 the runner's set of tasks
-- ARGV  none
-- reply ok, the time in ms, then the ids
local out = { 'ok', int(now()) }
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do out[#out + 1] = id end
return out
