-- session_sweep notes which client sessions were used, and finds those that may have ended, because
-- their last use that the set knows is long past. The next sweep finds them behind others. In the sets of shares such
-- ones are forgotten.
--
-- KEYS  1 the sessions  2.. those of each share of one that was used
-- ARGV  1 ms after which one is looked at  2 how many to find  3 how much less the score is of a session without a
--       request besides its handshake
--       then the list of those used now (id, ms after now, the numbers of the keys of its shares)
-- reply ok and the ids found
local old, n, young = tonumber(next_arg()), next_arg(), tonumber(next_arg())
local used = list()
local at, scores = now(), {}
-- add notes the scores of one set that have gathered.
local function add(i)
  if #scores[i] > 0 then redis.call('ZADD', KEYS[i], 'XX', 'GT', unpack(scores[i])) end
  scores[i] = {}
end
for i = 1, #KEYS do scores[i] = {} end
for j = 1, #used, 3 do
  local score = int(at + tonumber(used[j + 1]))
  for word in string.gmatch('1 ' .. used[j + 2], '%d+') do
    local i = tonumber(word)
    scores[i][#scores[i] + 1], scores[i][#scores[i] + 2] = score, used[j]
    if #scores[i] >= 1000 then add(i) end
  end
end
for i = 1, #KEYS do
  add(i)
  if i > 1 then redis.call('PEXPIRE', KEYS[i], int(old)) end
end
if tonumber(n) == 0 then return { 'ok' } end
for i = 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '0', '(' .. int(at - old))
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', '(' .. int(at - old - young))
end
local found = { 'ok' }
for _, less in ipairs({ 0, young }) do
  local from = less == 0 and '0' or '-inf'
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, '(' .. int(at - old - less), 'LIMIT', 0, n)) do
    redis.call('ZADD', KEYS[1], 'XX', int(at - old - less), id)
    found[#found + 1] = id
  end
end
return found
