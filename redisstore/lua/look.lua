-- look reads the heartbeats of two replicas, and the time, at one moment.
--
-- KEYS  1 the replicas
-- ARGV  1 2 the replicas
-- reply ok, the time in ms, the entry of each, '' for none
local entries = redis.call('HMGET', KEYS[1], next_arg(), next_arg())
return { 'ok', int(now()), entries[1] or '', entries[2] or '' }
