-- session_sweep notes which client sessions were used, and finds those that may have ended, because
-- their last use that the set knows is long past. The next sweep finds them behind others.
--
-- KEYS  1 the sessions  2.. those of each owner of one that was used
-- ARGV  1 ms after which one is looked at  2 how many to find
--       then the list of those used now (id, the number of its owner's key, or 1 if that is unknown)
-- reply ok and the ids found
local old, n = tonumber(next_arg()), next_arg()
local used = list()
local at = now()
for j = 1, #used, 2 do
  local i = tonumber(used[j + 1])
  redis.call('ZADD', KEYS[1], 'XX', int(at), used[j])
  redis.call('ZADD', KEYS[i], 'XX', int(at), used[j])
end
for i = 2, #KEYS do redis.call('PEXPIRE', KEYS[i], int(old)) end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. int(at - old), 'LIMIT', 0, n)
for _, id in ipairs(found) do redis.call('ZADD', KEYS[1], 'XX', int(at - old), id) end
table.insert(found, 1, 'ok')
return found
