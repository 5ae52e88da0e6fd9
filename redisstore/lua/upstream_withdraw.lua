-- upstream_withdraw says of an offered question that its server no longer waits for
-- the answer, and tells whoever has taken it to look.
--
-- KEYS  1 offer
-- ARGV  1 ref  2 channel
-- reply ok; none if it was not offered
local ref, events = next_arg(), next_arg()
if redis.call('EXISTS', KEYS[1]) == 0 then return { 'none' } end
redis.call('HSET', KEYS[1], 'over', '1')
redis.call('HDEL', KEYS[1], 'q')
redis.call('PUBLISH', events, ref .. ' 0')
return { 'ok' }
