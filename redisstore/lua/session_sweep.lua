-- session_sweep notes which client sessions were used, and finds those that may have ended, because
-- their last use that the set knows is long past. The next sweep finds them behind others.
--
-- KEYS  1 the sessions  2.. those of each share of one that was used
-- ARGV  1 ms after which one is looked at  2 how many to find  3 how much less the score is of a session without a
--       request besides its handshake
--       then the list of those used now (id, ms after now, the numbers of the keys of its shares)
-- reply ok and the ids found
local old, n, young = tonumber(next_arg()), next_arg(), tonumber(next_arg())
local used = list()
local at = now()
for j = 1, #used, 3 do
  local score = int(at + tonumber(used[j + 1]))
  redis.call('ZADD', KEYS[1], 'XX', 'GT', score, used[j])
  for word in string.gmatch(used[j + 2], '%d+') do
    local i = tonumber(word)
    redis.call('ZADD', KEYS[i], 'XX', 'GT', score, used[j])
  end
end
for i = 2, #KEYS do redis.call('PEXPIRE', KEYS[i], int(old)) end
if tonumber(n) == 0 then return { 'ok' } end
local found = { 'ok' }
for _, less in ipairs({ 0, young }) do
  local from = less == 0 and '0' or '-inf'
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, '(' .. int(at - old - less), 'LIMIT', 0, n)) do
    redis.call('ZADD', KEYS[1], 'XX', int(at - old - less), id)
    found[#found + 1] = id
  end
end
return found
