-- upstream_offer puts up a question of a server for a replica to take, and tells them
-- to look. A repeat only tells them again.
--
-- KEYS  1 offer
-- ARGV  1 ref  2 content  3 ms to live  4 channel
-- reply ok; taken if nobody need look any more
local ref, content, ttl, events = next_arg(), next_arg(), next_arg(), next_arg()
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'q', content)
  redis.call('PEXPIRE', KEYS[1], ttl)
elseif redis.call('HEXISTS', KEYS[1], 'q') == 0 then
  return { 'taken' }
end
redis.call('PUBLISH', events, ref .. ' 0')
return { 'ok' }
