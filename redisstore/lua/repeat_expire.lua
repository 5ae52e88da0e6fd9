-- repeat_expire forgets a call that its client may repeat, once its time is over.
--
-- KEYS  1 the calls of the client (repeat_note has their form)
-- ARGV  1 id  2 '1' to forget it also before, if nobody waits for it
-- reply ok if it is forgotten, held with how long it stays in ms
local id, force = next_arg(), next_arg()
local was = redis.call('HGET', KEYS[1], id)
if not was then return { 'ok' } end
local state, till = string.match(was, '^(%S+) %d+ (%d+) ')
local left = tonumber(till) - now()
if left > 0 and not (state == 'left' and force == '1') then return { 'held', int(left) } end
redis.call('HDEL', KEYS[1], id)
return { 'ok' }
