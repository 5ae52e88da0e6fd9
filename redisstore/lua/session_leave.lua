-- session_leave ends a client session to make room for another one, if it has been unused for as long as the sets say.
-- Each use renews its whole time to live, so the rest of that tells when the last use was.
--
-- KEYS  1 the set of changes  2 session  3.. its other keys
-- ARGV  1 id  2 ms to live from a use on  3 ms without use  4 channel
-- reply ok, or none if it stays; the ms since its last use, and the shares that it counts towards
local id, ttl, least, events = next_arg(), tonumber(next_arg()), tonumber(next_arg()), next_arg()
local left, shares = redis.call('PTTL', KEYS[2]), redis.call('HGET', KEYS[2], 'owner') or ''
local idle = math.max(0, ttl - left)
if left >= 0 and idle < least then return { 'none', int(idle), shares } end
redis.call('DEL', unpack(KEYS, 2))
changed(KEYS[1], id)
redis.call('PUBLISH', events, id .. ' 0')
return { 'ok', int(idle), shares }
