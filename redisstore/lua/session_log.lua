-- session_log adds to the log that a client session has of its streams.
--
-- KEYS  1 messages  2 what is known of the streams
-- ARGV  1 session  2 stream  3 what: open, add, end, leave or take  4 the message of an add, or
--       of a take the replica that is gone  5 note, or operation id of an add  6 ms to
--       live  7 8 how many messages and bytes are kept  9 channel  10 this replica
-- reply ok and the number of the last message, and 1 if the stream ever had one; taken:
--       another replica keeps the stream
-- Of each stream the last four operations are known, so that a repeat is told from a
-- second message though another replica has added one in between.
local id, stream, what, value, extra = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local ttl, most, room, events = next_arg(), tonumber(next_arg()), tonumber(next_arg()), next_arg()
local me = next_arg()
local out = 'x:' .. stream .. ' ' -- and a replica that has lost the stream to another
local was = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'o:' .. stream, 's:' .. stream, out .. me)
local last, bytes = tonumber(was[1] or '0'), tonumber(was[2] or '0')

if what == 'open' then
  redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, extra)
  redis.call('HDEL', KEYS[2], out .. me)
elseif what == 'take' then
  if was[4] ~= me then
    if was[4] ~= value then return { 'taken' } end
    redis.call('HSET', KEYS[2], 's:' .. stream, me, 'n:' .. stream, extra, out .. value, '')
    redis.call('HDEL', KEYS[2], out .. me)
  end
elseif was[5] then
  return { 'taken' }
elseif what == 'leave' then
  if was[4] == me then redis.call('HSET', KEYS[2], 's:' .. stream, '-') end
elseif what == 'end' then
  redis.call('HSET', KEYS[2], 's:' .. stream, '')
  redis.call('HDEL', KEYS[2], 'n:' .. stream, 'o:' .. stream)
elseif not string.find(was[3] or '', extra, 1, true) then
  local entry = stream .. ' ' .. value
  local n = redis.call('RPUSH', KEYS[1], entry)
  last, bytes = last + 1, bytes + #entry
  while n > 1 and (n > most or bytes > room) do
    bytes, n = bytes - #redis.call('LPOP', KEYS[1]), n - 1
  end
  redis.call('HSET', KEYS[2], 'last', int(last), 'bytes', int(bytes),
    'o:' .. stream, string.sub(extra .. ' ' .. (was[3] or ''), 1, 4 * (#extra + 1)))
end
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('PUBLISH', events, id .. ' ' .. int(last))
return { 'ok', int(last), was[3] and '1' or '' }
