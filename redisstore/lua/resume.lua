-- resume notes that calls go on which an operator had paused, and tells the replicas.
--
-- KEYS  1 what is paused
-- ARGV  1 upstream/tool  2 channel
-- reply ok
local what, events = next_arg(), next_arg()
redis.call('HDEL', KEYS[1], what)
redis.call('PUBLISH', events, what)
return { 'ok' }
