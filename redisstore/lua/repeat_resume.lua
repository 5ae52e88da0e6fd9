-- repeat_resume notes that a client waits again for the calls whose answers go out on a stream.
--
-- KEYS  1 the calls of the client (repeat_note has their form)
-- ARGV  1 stream
-- reply ok
local stream = next_arg()
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local state, rest = string.match(all[i + 1], '^(%S+) (.*)$')
  if (state == 'left' or state == 'awaited') and string.match(rest, ' (%S+) %S*$') == stream then
    redis.call('HSET', KEYS[1], all[i], 'resumed ' .. rest)
  end
end
return { 'ok' }
