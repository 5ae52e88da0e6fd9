-- session_signal sends a signal to the replicas that know a client session. The event carries the
-- signal, -1 in place of a revision, since the state is unchanged, and a token that is not stored.
--
-- KEYS  1 signals  2 the set of changes
-- ARGV  1 id  2 a name of its own  3 text  4 ms to live  5 how many are kept  6 channel  7 token, or ''
-- reply ok
local id, name, text, ttl, n, events = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local token = next_arg()
local at = name .. '@' .. int(now())
redis.call('RPUSH', KEYS[1], at .. ' ' .. text)
redis.call('LTRIM', KEYS[1], -tonumber(n), -1)
redis.call('PEXPIRE', KEYS[1], ttl)
changed(KEYS[2], id)
redis.call('PUBLISH', events, id .. ' -1 token ' .. at .. '#' .. token .. ' ' .. text)
return { 'ok' }
