-- session_sweep notes which client sessions were used, and finds those that may have
-- ended: whose last use is long past as far as this set knows.
--
-- KEYS  1 the sessions
-- ARGV  1 ms after which one is looked at  2 how many to find
--       then lists: used now, in use after all (found before, but still there)
-- reply ok and the ids found
local old, n = tonumber(next_arg()), next_arg()
local used, kept = list(), list()
local at = now()
for i = 1, #used do redis.call('ZADD', KEYS[1], 'XX', int(at), used[i]) end
for i = 1, #kept do redis.call('ZADD', KEYS[1], 'XX', int(at - old), kept[i]) end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. int(at - old), 'LIMIT', 0, n)
table.insert(found, 1, 'ok')
return found
