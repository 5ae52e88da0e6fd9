-- end_idle removes a session, of a client or with a server, that has been unused for long. Each use
-- renews its whole time to live, so the rest of that tells when the last use was.
--
-- KEYS  1 session
-- ARGV  1 ms to live from a use on  2 ms without use
-- reply ok and the state it had; none
local ttl, idle = tonumber(next_arg()), tonumber(next_arg())
local left = redis.call('PTTL', KEYS[1])
if left < 0 or ttl - left < idle then return { 'none' } end
local state = redis.call('HGET', KEYS[1], 'state')
redis.call('DEL', KEYS[1])
return { 'ok', state }
