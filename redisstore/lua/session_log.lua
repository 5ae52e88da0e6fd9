-- session_log changes the log that a client session has of its streams.
--
-- KEYS  1 messages, a Redis Stream  2 the states of the session's streams  3 the session  4 the set of changes
-- ARGV  1 session  2 stream  3 what: open, note, add, post, ask, end, leave, bury or clear
--       4 a message, or of a bury the replica that is gone  5 note ('gone' of an end: the client had
--       gone), or operation id of a message
--       6 ms to live  7 8 how many messages and bytes are kept  9 how many ms the messages of a
--       stream are kept after its end  10 channel  11 this replica  12 the last number that was the
--       reply to it
--       of an ask also  13 the question  14 the stream whose claim of it is void  15 the asker,
--       which tells a repeat from asking again on a stream
--       of a bury also  13 the known operations of the stream, then list: the last messages
-- reply ok, the number of the message that was added, else that of the last one, and the bytes of the log; taken: another
--       replica is the holder of the stream, or it has ended, or its state is not what the caller
--       thought; held and a stream: that one has the question; has: the client has the question;
--       none: the session does not exist
-- An entry is the name of its stream, its kind (message, end, left or gap) and its text; that of a question
-- also has the name of the question. The id of an entry is its number: the time, so each number is given out
-- once even if Redis comes back older. The log notes for each replica the last number that was the reply to
-- it. If that is below the number of the replica, the log has come back older, and an entry 'gap' has that
-- number. The log knows the last four operations of each stream, with their numbers, so that it tells a
-- repeat from a second message even if another replica has added one in between. The state of an ended stream
-- goes with the last entry of its end, and that of a question with its message.
local id, stream, what, value, extra = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local ttl, most, room, after_end = next_arg(), tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
local events, me, told = next_arg(), next_arg(), tonumber(next_arg())
if redis.call('EXISTS', KEYS[3]) == 0 then return { 'none' } end
local was = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'o:' .. stream, 's:' .. stream, 'n:' .. stream, 'due', 'r:' .. me)
local last, bytes = tonumber(was[1] or '0'), tonumber(was[2] or '0')
local ops, keeper, note, due = was[3] or '', was[4], was[5] or '', tonumber(was[6] or '')
local ENDED, LEFT = '', '-' -- in place of the holder of a stream

local function size(entry) return #entry[2][2] + #entry[2][4] end
local function enter(name, kind, text, question)
  last = math.max(now() * per_ms, last + 1)
  local fields = { 'stream', name, kind, text }
  if question then fields[5], fields[6] = 'question', question end
  redis.call('XADD', KEYS[1], int(last), unpack(fields))
  bytes = bytes + #name + #text
end
-- remove takes an entry out, with the state that depends on it.
local function remove(entry)
  local _, name, kind, _, _, question = unpack(entry[2])
  redis.call('XDEL', KEYS[1], entry[1])
  bytes = bytes - size(entry)
  if question and string.match(redis.call('HGET', KEYS[2], 'q:' .. question) or '', '^[^ ]+ (%d+)') == number(entry) then
    redis.call('HDEL', KEYS[2], 'q:' .. question)
  elseif kind == 'end' or kind == 'left' then
    local of = redis.call('HMGET', KEYS[2], 's:' .. name, 'e:' .. name)
    if (of[1] == ENDED or of[1] == LEFT) and (not of[2] or of[2] == number(entry)) then -- it is the last such entry
      redis.call('HDEL', KEYS[2], 's:' .. name, 'n:' .. name, 'e:' .. name)
    end
  end
end
-- save stores the state of the log as a whole.
local function save()
  redis.call('HSET', KEYS[2], 'last', int(last), 'bytes', int(bytes), 'due', due and int(due) or '', 'r:' .. me, int(last))
  redis.call('PEXPIRE', KEYS[1], ttl)
  redis.call('PEXPIRE', KEYS[2], ttl)
end
-- clear takes out the messages of streams that ended by a time; due becomes the end of the next one.
local function clear(at)
  local all, gone = redis.call('XRANGE', KEYS[1], '-', '+'), {}
  due = nil
  for _, entry in ipairs(all) do
    local _, name, kind = unpack(entry[2])
    if kind == 'end' then
      local ended = tonumber(number(entry)) / per_ms
      if ended > at then
        due = due or ended
      else
        gone[name] = redis.call('HGET', KEYS[2], 's:' .. name) == ENDED
      end
    end
  end
  for _, entry in ipairs(all) do
    if gone[entry[2][2]] then remove(entry) end
  end
  save()
end
-- make_room takes out the oldest message of the stream that has the most bytes until the rest fits, with an
-- eighth to spare: it reads the whole log. The newest entry comes on top.
local function make_room()
  local all = redis.call('XRANGE', KEYS[1], '-', '+')
  local fits = room - room / 8 + size(all[#all])
  local streams, had = {}, {}
  for i = 1, #all - 1 do
    local _, name, kind = unpack(all[i][2])
    if kind == 'message' then
      if not had[name] then
        had[name] = { bytes = 0 }
        streams[#streams + 1] = name
      end
      had[name][#had[name] + 1] = all[i]
      had[name].bytes = had[name].bytes + size(all[i])
    end
  end
  while bytes > fits do
    local largest
    for _, name in ipairs(streams) do
      if had[name].bytes > (largest and had[largest].bytes or 0) then largest = name end
    end
    if not largest then return end
    local oldest = table.remove(had[largest], 1)
    had[largest].bytes = had[largest].bytes - size(oldest)
    remove(oldest)
  end
end
-- over ends the stream. A stream that was left can be opened again, and has a note for its next holder.
local function over(kind, with)
  local how = kind == 'end' and ENDED or LEFT
  enter(stream, kind, '')
  redis.call('HSET', KEYS[2], 's:' .. stream, how, 'n:' .. stream, with, 'e:' .. stream, int(last))
  redis.call('HDEL', KEYS[2], 'o:' .. stream)
  if how == ENDED then
    due = due or last / per_ms
    if with == '' then redis.call('HDEL', KEYS[2], 'n:' .. stream) end
  end
end
local function add(question)
  local before = bytes
  enter(stream, 'message', value, question)
  ops = extra .. ' ' .. int(last) .. ' ' .. ops
  redis.call('HSET', KEYS[2], 'o:' .. stream, string.match(ops, string.rep('[^ ]+ [^ ]+ ', 4)) or ops)
  if before > room then make_room() end
end
-- holder is another stream that has a question, and the reason for which it keeps it; nil if the question may
-- be asked.
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
-- done replies, once surplus entries are removed.
local function done(at)
  local more = redis.call('XLEN', KEYS[1]) - most
  if more > 0 then
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', more)) do remove(entry) end
  end
  save()
  return { 'ok', at or int(last), int(bytes) }
end

if tonumber(was[7] or '0') < told then
  last = math.max(last, told) -- the clock may have gone back, too
  enter('', 'gap', int(told))
  save()
end
if not keeper and (what == 'add' or what == 'ask') then
  keeper = me
  redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, '')
end
if due and due + 1.25 * after_end <= now() then clear(now() - after_end) end -- a little later, for several at once
if what == 'clear' then return done() end
local at = nil
if what == 'add' or what == 'post' then at = string.match(' ' .. ops, ' ' .. extra .. ' (%d+)') end
if at then -- it is there
elseif what == 'open' then
  redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, extra)
elseif what == 'post' then
  if keeper == ENDED then return { 'taken' } end
  if not keeper then redis.call('HSET', KEYS[2], 's:' .. stream, LEFT, 'n:' .. stream, '') end
  add()
elseif what == 'bury' then
  if keeper ~= value or note ~= extra or ops ~= next_arg() then return { 'taken' } end
  for _, message in ipairs(list()) do enter(stream, 'message', message) end
  over('end', '')
elseif what == 'end' then
  if keeper == me then over('end', extra) end
elseif what == 'leave' then
  if keeper == me then over('left', extra) end
elseif keeper ~= me then
  return { 'taken' }
elseif what == 'note' then
  redis.call('HSET', KEYS[2], 'n:' .. stream, extra)
elseif what == 'add' then
  add()
else
  local name, void, op = next_arg(), next_arg(), next_arg()
  local by, no, was_op = string.match(redis.call('HGET', KEYS[2], 'q:' .. name) or '', '^([^ ]+) (%d+) (.*)$')
  if by == stream and was_op == op then return { 'ok', no } end
  local why, other = holder(name, void)
  if why then return { why, other } end
  add(name)
  redis.call('HSET', KEYS[2], 'q:' .. name, stream .. ' ' .. int(last) .. ' ' .. op)
end
changed(KEYS[4], id)
redis.call('PUBLISH', events, id .. ' ' .. int(last))
return done(at)
