-- session_end ends a client session.
--
-- KEYS  1 the set of changes  2 session  3.. its other keys
-- ARGV  1 id  2 channel
-- reply ok
local id, events = next_arg(), next_arg()
redis.call('DEL', unpack(KEYS, 2))
changed(KEYS[1], id)
redis.call('PUBLISH', events, id .. ' 0')
return { 'ok' }
