-- session_since reads what a stream of a client session has had after a message.
--
-- KEYS  1 messages  2 what is known of the streams
-- ARGV  1 stream  2 number of the message
-- reply ok, the replica that keeps the stream ('' once it has ended, '-' once it was left),
--       its note, its last operations, and number and text of each message, '~' for one of any
--       stream that was forgotten when Redis came back older; none
local stream, after = next_arg(), tonumber(next_arg())
local was = redis.call('HMGET', KEYS[2], 'last', 's:' .. stream, 'n:' .. stream, 'o:' .. stream)
if not was[2] then return { 'none' } end
local out = { 'ok', was[2], was[3] or '', was[4] or '' }
local last = tonumber(was[1] or '0')
local first = last - redis.call('LLEN', KEYS[1]) + 1
local from = math.max(after + 1, first)
if from > last then return out end
local plain, question = stream .. ' ', stream .. '?'
for i, entry in ipairs(redis.call('LRANGE', KEYS[1], from - first, -1)) do
  local start = string.sub(entry, 1, #plain)
  if start == plain or start == question then
    out[#out + 1] = int(from + i - 1)
    out[#out + 1] = string.sub(entry, string.find(entry, ' ', 1, true) + 1)
  elseif entry == '~' then
    out[#out + 1] = int(from + i - 1)
    out[#out + 1] = entry
  end
end
return out
