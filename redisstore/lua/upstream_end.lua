-- upstream_end removes a session with a server that has been unused for long, or that its client has ended and nobody else
-- uses. Each use renews its whole time to live, so the rest of that tells when the last use was.
--
-- KEYS  1 session
-- ARGV  1 ms to live from a use on  2 ms without use  3 who asks  4 '1' if its client has ended it  5 ms for which the note
--       of a use counts; the session is also over after so long without use, once its client has ended it
-- reply ok and the state it had; held, and in how many ms it may be over; none
local ttl, idle, who, over, counts = tonumber(next_arg()), tonumber(next_arg()), next_arg(), next_arg(), tonumber(next_arg())
local left = redis.call('PTTL', KEYS[1])
if left < 0 then return { 'none' } end
local waits = { 0 }
if over ~= '' then
  redis.call('HSET', KEYS[1], 'over', '1')
  local at = now()
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, 3) == 'by:' and name ~= 'by:' .. who then
      waits[#waits + 1] = counts - (at - tonumber(redis.call('HGET', KEYS[1], name)))
    end
  end
elseif redis.call('HEXISTS', KEYS[1], 'over') == 1 then
  idle = math.min(idle, counts)
end
local wait = math.max(idle - (ttl - left), unpack(waits))
if wait > 0 then return { 'held', int(wait) } end
local state = redis.call('HGET', KEYS[1], 'state')
redis.call('DEL', KEYS[1])
return { 'ok', state }
