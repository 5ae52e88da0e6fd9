-- session_enter adds a client session to the sets of sessions, unless a share of it, or the limit of all, is full.
-- Then it names the session that could make room. The one that was asked before leaves the sets, or its last use is
-- noted.
--
-- KEYS  1 the sessions  2.. those of its shares, then the sets of the session that was asked
-- ARGV  1 id  2 how many there may be  3 ms without use after which one makes room for any other
--       4 ms after which one without a request goes first  5 ms to live of the set of a share
--       6 how much less the score of such a session is
--       7 how many shares  8.. how many of each there may be; 0 is any number
--       then the session that was asked, or ''  'true' if it is gone  else ms since its last use, and by how much
--       less its score is
-- reply ok; full, and the number of the share, '' for the limit of all; again, this number, the session that could make
--       room, '1' if it has had no request, and for how many ms it is unused
local id, max, rest, first, life = next_arg(), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
local young, shares = tonumber(next_arg()), tonumber(next_arg())
local most = {}
for i = 1, shares do most[i] = tonumber(next_arg()) end
local asked, gone, idle, less = next_arg(), next_arg(), tonumber(next_arg()), tonumber(next_arg())
local at = now()
if asked ~= '' then
  for i = 1, #KEYS do
    if gone == 'true' then
      redis.call('ZREM', KEYS[i], asked)
    elseif redis.call('ZSCORE', KEYS[i], asked) then
      redis.call('ZADD', KEYS[i], 'XX', 'GT', int(at - idle - less), asked)
    end
  end
end
if not redis.call('ZSCORE', KEYS[1], id) then
  -- The set of all comes last.
  for n = 1, shares + 1 do
    local i = n % (shares + 1) + 1
    -- oldest is the session of the set with the lowest score in a range, and how long it is unused.
    local function oldest(from, to, less)
      local found = redis.call('ZRANGEBYSCORE', KEYS[i], from, to, 'WITHSCORES', 'LIMIT', 0, 1)
      if found[1] then return found[1], at - less - tonumber(found[2]) end
    end
    -- candidate is the session of the set that could make room.
    local function candidate(least)
      local new, age = oldest('-inf', '(0', -young)
      if new and age >= math.max(first, least) then return new, '1', age end
      local old, unused = oldest('0', int(at), 0)
      if new and least == 0 and (not old or age >= unused) then return new, '1', age end
      if old and unused >= least then return old, '0', unused end
    end
    local limit, least, share = max, rest, ''
    if i > 1 then
      limit, least, share = most[i - 1], 0, int(i - 1)
      redis.call('ZREMRANGEBYSCORE', KEYS[i], '0', '(' .. int(at - life)) -- that of all is swept
      redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', '(' .. int(at - life - young))
    end
    if limit > 0 and redis.call('ZCARD', KEYS[i]) >= limit then
      local other, new, unused = candidate(least)
      if other then return { 'again', share, other, new, int(unused) } end
      return { 'full', share }
    end
  end
end
for i = 1, shares + 1 do
  redis.call('ZADD', KEYS[i], int(at - young), id)
  if i > 1 then redis.call('PEXPIRE', KEYS[i], int(life)) end
end
return { 'ok' }
