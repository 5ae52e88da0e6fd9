-- session_end ends a client session.
--
-- KEYS  1 session  2.. its other keys
-- ARGV  1 id  2 channel
-- reply ok
local id, events = next_arg(), next_arg()
if redis.call('DEL', unpack(KEYS)) > 0 then redis.call('PUBLISH', events, id .. ' 0') end
return { 'ok' }
