-- session_log adds to the log that a client session has of its streams.
--
-- KEYS  1 messages  2 what is known of the streams  3 the session
-- ARGV  1 session  2 stream  3 what: open, note, add, post, ask, end, leave, bury or clear  4 a
--       message, or of a bury the replica that is gone  5 note ('gone' of an end: the client had
--       gone), or operation id of a message
--       6 ms to live  7 8 how many messages and bytes are kept  9 for how many ms what a stream
--       had is kept after its end  10 channel  11 this replica  12 the last number that it has seen
--       13 the last number that was the reply to it
--       of an ask also  14 the question  15 the stream whose claim of it is void  16 who asks:
--       a repeat by the same one is told from asking again on a stream
--       of a bury also  14 operations that are known of the stream, then list: the last messages
-- reply ok and the number of the message that was added, else that of the last one; taken: another
--       replica keeps the stream, or it has ended, or it is not what the caller thought; held and
--       a stream: that one has the question; has: the client has the question; none: there is no
--       such session
-- Of each stream the last four operations are known, so that a repeat is told from a
-- second message though another replica has added one in between. The end of a stream is
-- an entry of its name and the time, and that it was left one of its name alone. What is known
-- of a stream that is over goes with that entry, and what is known of a question goes with its
-- message. Messages are numbered by their place, so one that is taken out leaves an empty
-- entry until it is the oldest. Where Redis came back older, entries '~' stand for the numbers that
-- were given out: a replica gives none twice that it has seen, and keeps the stream that it adds to. Another one may
-- have given them out again before. Then the log does not know that it has replied so far to this
-- replica, and one '~' stands for all.
local id, stream, what, value, extra = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local ttl, most, room, after_end = next_arg(), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
local events, me, seen, told = next_arg(), next_arg(), tonumber(next_arg()), tonumber(next_arg())
if redis.call('EXISTS', KEYS[3]) == 0 then return { 'none' } end
local was = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'o:' .. stream, 's:' .. stream, 'n:' .. stream, 'due', 'r:' .. me)
local last, bytes = tonumber(was[1] or '0'), tonumber(was[2] or '0')
local ops, keeper, note = was[3] or '', was[4], was[5] or ''
local ENDED, LEFT = '', '-' -- in place of the replica that keeps a stream

local newest = 0 -- bytes of the last entry
local function enter(entry)
  redis.call('RPUSH', KEYS[1], entry)
  newest = #entry
  last, bytes = last + 1, bytes + newest
end
-- forget removes what is known of an entry that is gone.
local function forget(entry, no)
  local name = string.match(entry, '^[^ ?]+%?([^ ]+) ')
  if name and string.match(redis.call('HGET', KEYS[2], 'q:' .. name) or '', '^[^ ]+ (%d+)') == int(no) then
    redis.call('HDEL', KEYS[2], 'q:' .. name)
  elseif not string.find(entry, ' ', 1, true) then
    local over = string.match(entry, '^[^!]*')
    local s = redis.call('HGET', KEYS[2], 's:' .. over)
    if s == ENDED or s == LEFT then redis.call('HDEL', KEYS[2], 's:' .. over, 'n:' .. over) end
  end
end
local function drop_empty()
  while redis.call('LINDEX', KEYS[1], 0) == '' do redis.call('LPOP', KEYS[1]) end
end
-- clear takes out what streams had that have ended by a time; due is the end of the next one.
local function clear(at)
  local all, gone, due = redis.call('LRANGE', KEYS[1], 0, -1), {}, nil
  for _, entry in ipairs(all) do
    local name, ended = string.match(entry, '^([^ ?!]*)!(%d+)$')
    if name and tonumber(ended) > at then
      due = due or ended
    elseif name then
      gone[name] = redis.call('HGET', KEYS[2], 's:' .. name) == ENDED
    end
  end
  for i, entry in ipairs(all) do
    if gone[string.match(entry, '^[^ ?!]*')] then
      redis.call('LSET', KEYS[1], i - 1, '')
      bytes = bytes - #entry
      forget(entry, last - #all + i)
    end
  end
  drop_empty()
  redis.call('HSET', KEYS[2], 'due', due or '', 'bytes', int(bytes))
end
-- make_room takes out the oldest message of the stream that has the most bytes until the rest fits, with an eighth
-- to spare: it reads the whole log. The newest message comes on top.
local function make_room()
  local all = redis.call('LRANGE', KEYS[1], 0, -1)
  local fits = room - room / 8 + newest
  local streams, had = {}, {}
  for i = 1, #all - 1 do
    local name = string.match(all[i], '^([^ ?!]+)%??[^ ]* ')
    if name then
      if not had[name] then
        had[name] = { bytes = 0 }
        streams[#streams + 1] = name
      end
      had[name][#had[name] + 1] = i
      had[name].bytes = had[name].bytes + #all[i]
    end
  end
  while bytes > fits do
    local largest
    for _, name in ipairs(streams) do
      if had[name].bytes > (largest and had[largest].bytes or 0) then largest = name end
    end
    if not largest then return end
    local i = table.remove(had[largest], 1)
    redis.call('LSET', KEYS[1], i - 1, '')
    forget(all[i], last - #all + i)
    bytes, had[largest].bytes = bytes - #all[i], had[largest].bytes - #all[i]
  end
end
-- trim removes what is too much, or what makes too many only.
local function trim(count_only)
  local n = redis.call('LLEN', KEYS[1])
  while n > most do
    local entry = redis.call('LPOP', KEYS[1])
    forget(entry, last - n + 1)
    bytes, n = bytes - #entry, n - 1
  end
  if not count_only and bytes - newest > room then
    make_room()
    drop_empty()
  end
  redis.call('HSET', KEYS[2], 'last', int(last), 'bytes', int(bytes))
end
-- over ends the stream. What is left can be opened again, and has a note for whoever does.
local function over(how, with)
  if how == ENDED then
    enter(stream .. '!' .. int(now()))
    if not was[6] or was[6] == '' then redis.call('HSET', KEYS[2], 'due', int(now())) end
  else
    enter(stream)
  end
  redis.call('HSET', KEYS[2], 's:' .. stream, how, 'n:' .. stream, with)
  redis.call('HDEL', KEYS[2], 'o:' .. stream)
  if how == ENDED and with == '' then redis.call('HDEL', KEYS[2], 'n:' .. stream) end
  trim(true)
end
local function add(entry)
  enter(entry)
  redis.call('HSET', KEYS[2], 'o:' .. stream, string.sub(extra .. ' ' .. ops, 1, 4 * (#extra + 1)))
  trim(false)
end
-- holder is another stream that has a question, and why it is not asked again; nil if it is.
local function holder(name, void)
  local other = string.match(redis.call('HGET', KEYS[2], 'q:' .. name) or '', '^[^ ]+')
  if not other or other == stream then return nil end
  local by = redis.call('HGET', KEYS[2], 's:' .. other)
  if by == ENDED then
    if redis.call('HGET', KEYS[2], 'n:' .. other) == 'gone' then return nil end
    return 'has', other
  end
  if not by or by == LEFT or other == void then return nil end
  return 'held', other
end

if last < seen or tonumber(was[7] or '0') < told then
  seen = math.max(seen, last + 1)
  if seen - last > most then
    local all = redis.call('LRANGE', KEYS[1], 0, -1)
    for i, entry in ipairs(all) do forget(entry, last - #all + i) end
    redis.call('DEL', KEYS[1])
    last, bytes = seen - 1, 0
  end
  while last < seen do enter('~') end
  redis.call('HSET', KEYS[2], 'last', int(last), 'bytes', int(bytes), 'r:' .. me, int(last))
  redis.call('PEXPIRE', KEYS[1], ttl)
  redis.call('PEXPIRE', KEYS[2], ttl)
end
if not keeper and (what == 'add' or what == 'ask') then
  keeper = me
  redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, '')
end
local due = tonumber(was[6] or '')
if due and due + 1.25 * after_end <= now() then -- a little later, for several at once
  clear(now() - after_end)
  was[6] = redis.call('HGET', KEYS[2], 'due')
end
if what == 'clear' then return { 'ok', int(last) } end
local repeated = (what == 'add' or what == 'post') and string.find(ops, extra, 1, true)
local at = nil
if repeated then -- it is there
  local all = redis.call('LRANGE', KEYS[1], 0, -1)
  for i, entry in ipairs(all) do
    if entry == stream .. ' ' .. value then at = last - #all + i end
  end
elseif what == 'open' then
  redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, extra)
elseif what == 'post' then
  if keeper == ENDED then return { 'taken' } end
  if not keeper then redis.call('HSET', KEYS[2], 's:' .. stream, LEFT, 'n:' .. stream, '') end
  add(stream .. ' ' .. value)
elseif what == 'bury' then
  if keeper ~= value or note ~= extra or ops ~= next_arg() then return { 'taken' } end
  for _, message in ipairs(list()) do enter(stream .. ' ' .. message) end
  over(ENDED, '')
elseif what == 'end' or what == 'leave' then
  if keeper == me then over(what == 'end' and ENDED or LEFT, extra) end
elseif keeper ~= me then
  return { 'taken' }
elseif what == 'note' then
  redis.call('HSET', KEYS[2], 'n:' .. stream, extra)
elseif what == 'add' then
  add(stream .. ' ' .. value)
else
  local name, void, op = next_arg(), next_arg(), next_arg()
  local by, no, was_op = string.match(redis.call('HGET', KEYS[2], 'q:' .. name) or '', '^([^ ]+) (%d+) (.*)$')
  if by == stream and was_op == op then return { 'ok', no } end
  local why, other = holder(name, void)
  if why then return { why, other } end
  redis.call('HSET', KEYS[2], 'q:' .. name, stream .. ' ' .. int(last + 1) .. ' ' .. op)
  add(stream .. '?' .. name .. ' ' .. value)
end
redis.call('HSET', KEYS[2], 'r:' .. me, int(last))
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('PUBLISH', events, id .. ' ' .. int(last))
return { 'ok', int(at or last) }
