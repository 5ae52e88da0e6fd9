-- session_enter puts a client session among those that exist. Where its owner, or all
-- together, have as many as they may have, one that has not been used for longest has to
-- make room first, if no replica has been busy with it lately: one of its owner, or of the
-- owner who has most. Only if that one is busy with all of them, any.
--
-- KEYS  1 the sessions  2 those of its owner  3 the owners by how many they have
--       4 those of the owner who has most, where the caller knows, or those of its owner
-- ARGV  1 id  2 how many there may be  3 how many of one owner; 0 is any number
--       4 owner  5 the owner who has most, as the caller knows, or ''
--       6 ms after which a session counts as idle  7 ms after which it has ended
--       then list: those that have made room
-- reply ok; room and the ids that have to make room; most and the owner who has most, whom
--       the caller did not know; full, and '1' if that is for the owner's sake
-- What has ended by itself leaves the set of its owner here. So how many an owner has is
-- never too few, and it is right once the owner, or who wants room from the owner, was here.
local id, max, most, owner, rival = next_arg(), tonumber(next_arg()), tonumber(next_arg()), next_arg(), next_arg()
local quiet, life = tonumber(next_arg()), tonumber(next_arg())
local gone = list()
local at = now()

-- counted is how many sessions an owner has, who has them in KEYS[i].
local function counted(i, name)
  for j = 1, #gone do redis.call('ZREM', KEYS[i], gone[j]) end
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', int(at - life))
  local n = redis.call('ZCARD', KEYS[i])
  if n > 0 then redis.call('ZADD', KEYS[3], n, name) else redis.call('ZREM', KEYS[3], name) end
  return n
end
-- room are up to n sessions of KEYS[i] that were not used for a time, or nil.
local function room(i, n, time)
  local found = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', int(at - time), 'LIMIT', 0, n)
  if #found == 0 then return nil end
  table.insert(found, 1, 'room')
  return found
end

for j = 1, #gone do redis.call('ZREM', KEYS[1], gone[j]) end
local mine = counted(2, owner)
if rival ~= '' then counted(4, rival) end
if not redis.call('ZSCORE', KEYS[1], id) then
  if most > 0 and mine >= most then return room(2, mine + 1 - most, quiet) or { 'full', '1' } end
  local over = redis.call('ZCARD', KEYS[1]) + 1 - max
  if over > 0 then
    local ended = room(1, over, life)
    if ended then return ended end
    local first = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) <= mine then return room(2, over, quiet) or { 'full', '' } end
    if first[1] ~= rival then return { 'most', first[1] } end
    return room(4, over, quiet) or room(1, over, quiet) or { 'full', '' }
  end
end
redis.call('ZADD', KEYS[1], int(at), id)
redis.call('ZADD', KEYS[2], int(at), id)
redis.call('PEXPIRE', KEYS[2], int(life))
counted(2, owner)
return { 'ok' }
