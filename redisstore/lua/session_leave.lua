-- session_leave takes a client session out of those that exist.
--
-- KEYS  1 the sessions  2 those of its owner  3 the owners by how many they have
-- ARGV  1 id  2 owner
-- reply ok
local id, owner = next_arg(), next_arg()
redis.call('ZREM', KEYS[1], id)
redis.call('ZREM', KEYS[2], id)
local n = redis.call('ZCARD', KEYS[2])
if n > 0 then redis.call('ZADD', KEYS[3], n, owner) else redis.call('ZREM', KEYS[3], owner) end
return { 'ok' }
