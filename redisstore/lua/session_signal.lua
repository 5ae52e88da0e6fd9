-- session_signal leaves a word for the replicas that are busy with a client session.
--
-- KEYS  1 signals
-- ARGV  1 id  2 word, after a name of its own  3 ms to live  4 how many are kept  5 channel
-- reply ok
local id, word, ttl, n, events = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
redis.call('RPUSH', KEYS[1], word)
redis.call('LTRIM', KEYS[1], -tonumber(n), -1)
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PUBLISH', events, id .. ' 0')
return { 'ok' }
