-- session_log adds to the log that a client session has of its streams.
--
-- KEYS  1 messages  2 what is known of the streams
-- ARGV  1 session  2 stream  3 what: open, note, add, end or bury  4 the message of an add, or
--       of a bury the replica that is gone  5 note, or operation id of an add  6 ms to
--       live  7 8 how many messages and bytes are kept  9 channel  10 this replica
--       of a bury also  11 operations that are known of the stream, then list: the last messages
-- reply ok and the number of the last message; taken: another replica keeps the stream, or
--       it has ended, or it is not what the caller thought
-- Of each stream the last four operations are known, so that a repeat is told from a
-- second message though another replica has added one in between. The end of a stream is
-- an entry of its name alone. What is known of a stream that has ended goes with that entry.
local id, stream, what, value, extra = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local ttl, most, room, events = next_arg(), tonumber(next_arg()), tonumber(next_arg()), next_arg()
local me = next_arg()
local was = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'o:' .. stream, 's:' .. stream, 'n:' .. stream)
local last, bytes = tonumber(was[1] or '0'), tonumber(was[2] or '0')
local ops, keeper, note = was[3] or '', was[4], was[5] or ''

local function add(entry)
  redis.call('RPUSH', KEYS[1], entry)
  last, bytes = last + 1, bytes + #entry
end
-- trim removes what is too much, or what makes too many only.
local function trim(count_only)
  local n = redis.call('LLEN', KEYS[1])
  while n > 1 and (n > most or not count_only and bytes > room) do
    local entry = redis.call('LPOP', KEYS[1])
    bytes, n = bytes - #entry, n - 1
    if not string.find(entry, ' ', 1, true) and redis.call('HGET', KEYS[2], 's:' .. entry) == '' then
      redis.call('HDEL', KEYS[2], 's:' .. entry)
    end
  end
  redis.call('HSET', KEYS[2], 'last', int(last), 'bytes', int(bytes))
end
local function finish()
  add(stream)
  redis.call('HSET', KEYS[2], 's:' .. stream, '')
  redis.call('HDEL', KEYS[2], 'n:' .. stream, 'o:' .. stream)
  trim(true)
end

if what == 'open' then
  redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, extra)
elseif what == 'note' then
  if keeper ~= me then return { 'taken' } end
  redis.call('HSET', KEYS[2], 'n:' .. stream, extra)
elseif what == 'end' then
  if keeper == me then finish() end
elseif what == 'bury' then
  if keeper ~= value or note ~= extra or ops ~= next_arg() then return { 'taken' } end
  for _, message in ipairs(list()) do add(stream .. ' ' .. message) end
  finish()
elseif not string.find(ops, extra, 1, true) then
  if keeper == '' then return { 'taken' } end
  add(stream .. ' ' .. value)
  redis.call('HSET', KEYS[2], 'o:' .. stream, string.sub(extra .. ' ' .. ops, 1, 4 * (#extra + 1)))
  trim(false)
end
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('PUBLISH', events, id .. ' ' .. int(last))
return { 'ok', int(last) }
