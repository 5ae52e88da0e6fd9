-- upstream_take gives an offered question to the first who asks for it. One that the
-- store does not know (any more) is given as well: who asks has it from elsewhere.
--
-- KEYS  1 offer
-- ARGV  1 who takes it  2 ms to live
-- reply ok; taken by somebody else, or withdrawn
local own, ttl = next_arg(), next_arg()
local have = redis.call('HMGET', KEYS[1], 'by', 'over')
if have[1] == own then return { 'ok' } end
if have[1] or have[2] then return { 'taken' } end
redis.call('HSET', KEYS[1], 'by', own)
redis.call('HDEL', KEYS[1], 'q')
redis.call('PEXPIRE', KEYS[1], ttl)
return { 'ok' }
