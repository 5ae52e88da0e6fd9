-- session_enter adds a client session to the sets of sessions, unless a share of it, or the limit of all, is full.
-- Then it names the sessions that could make room, the best first. The one that was asked before leaves the sets, or its
-- last use is noted.
--
-- A store within the process sorts a set for each look at its order. So a set is looked through only if the caller asks
-- for sessions, and for expired ones each 64th time.
--
-- KEYS  1 the sessions  2.. those of its shares, then the sets of the session that was asked
-- ARGV  1 id  2 how many there may be  3 ms without use after which one makes room for any other
--       4 ms after which one without a request goes first  5 ms to live of the set of a share
--       6 how much less the score of such a session is
--       7 how many shares  8.. how many of each there may be; 0 is any number
--       then of each share, and of all, which sessions to name: 'one', 'many' (a fiftieth), or 'none'
--       then the session that was asked, or ''  'true' if it is gone  else ms since its last use, and by how much
--       less its score is
-- reply ok; full, and the number of the share, '' for the limit of all; again, this number, and for each session that
--       could make room its id, '1' if it has had no request, and for how many ms it is unused
local id, max, rest, first, life = next_arg(), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
local young, shares = tonumber(next_arg()), tonumber(next_arg())
local most, wanted = {}, {}
for i = 1, shares do most[i] = tonumber(next_arg()) end
for i = 1, shares + 1 do wanted[i] = next_arg() end
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
    local share, limit, least, want = '', max, rest, wanted[shares + 1]
    if i > 1 then share, limit, least, want = int(i - 1), most[i - 1], 0, wanted[i - 1] end
    local count = redis.call('ZCARD', KEYS[i])
    local full = limit > 0 and count >= limit
    if full and want == 'none' then return { 'again', share } end
    if i > 1 and (full or asked == '' and (count < 64 or count % 64 == 0)) then -- that of all is swept
      redis.call('ZREMRANGEBYSCORE', KEYS[i], '0', '(' .. int(at - life))
      redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', '(' .. int(at - life - young))
      full = limit > 0 and redis.call('ZCARD', KEYS[i]) >= limit
    end
    if full then
      local named = 1
      if want == 'many' then named = math.max(1, math.floor(limit / 50)) end
      -- oldest are the sessions of the set with the lowest scores in a range, and how long they are unused.
      local function oldest(from, to, less)
        local found, out = redis.call('ZRANGEBYSCORE', KEYS[i], from, to, 'WITHSCORES', 'LIMIT', 0, named), {}
        for j = 1, #found, 2 do out[#out + 1] = { found[j], at - less - tonumber(found[j + 1]) } end
        return out
      end
      local new, old = oldest('-inf', '(0', young), oldest('0', int(at), 0)
      local out, a, b = { 'again', share }, 1, 1
      for _ = 1, named do
        local x, y = new[a], old[b]
        if x and (x[2] >= math.max(first, least) or least == 0 and (not y or x[2] >= y[2])) then
          out[#out + 1], out[#out + 2], out[#out + 3], a = x[1], '1', int(x[2]), a + 1
        elseif y and y[2] >= least then
          out[#out + 1], out[#out + 2], out[#out + 3], b = y[1], '0', int(y[2]), b + 1
        end
      end
      if #out > 2 then return out end
      return { 'full', share }
    end
  end
end
for i = 1, shares + 1 do
  redis.call('ZADD', KEYS[i], int(at - young), id)
  if i > 1 then redis.call('PEXPIRE', KEYS[i], int(life)) end
end
return { 'ok' }
