-- session_since reads the messages that a stream of a client session got after a number.
--
-- KEYS  1 messages, a Redis Stream  2 the states of the session's streams
-- ARGV  1 stream  2 number of the message; '' reads none
-- reply ok, the holder of the stream ('' once it has ended, '-' once it was left),
--       its note, its last operations, and number and text of each message; none
-- If Redis came back older and forgot messages of any stream, the text is '~' and the number that
-- of the last of them. A reader that is beyond the end of the log gets '~' and that end, from which
-- it goes on.
local stream, after = next_arg(), tonumber(next_arg())
local was = redis.call('HMGET', KEYS[2], 'last', 's:' .. stream, 'n:' .. stream, 'o:' .. stream)
if not was[2] then return { 'none' } end
local out = { 'ok', was[2], was[3] or '', was[4] or '' }
if not after then return out end
if after > tonumber(was[1] or '0') then
  out[#out + 1], out[#out + 2] = was[1] or '0', '~'
  return out
end
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], int(after + 1), '+')) do
  local _, name, kind, text = unpack(entry[2])
  if kind == 'message' and name == stream then
    out[#out + 1], out[#out + 2] = number(entry), text
  elseif kind == 'gap' and tonumber(text) > after then
    out[#out + 1], out[#out + 2] = text, '~'
  end
end
return out
