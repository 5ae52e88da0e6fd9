-- session_end ends a client session.
--
-- KEYS  1 session  2.. its other keys
-- ARGV  1 id  2 channel
-- reply ok
local id, events = next_arg(), next_arg()
redis.call('DEL', unpack(KEYS))
redis.call('PUBLISH', events, id .. ' 0')
return { 'ok' }
