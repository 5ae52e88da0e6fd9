-- session_leave takes a client session out of those that exist.
--
-- KEYS  1 the sessions  2 those of its owner
-- ARGV  1 id
-- reply ok
local id = next_arg()
redis.call('ZREM', KEYS[1], id)
redis.call('ZREM', KEYS[2], id)
return { 'ok' }
