-- rate takes requests out of what a caller may send (GCRA). What is kept is one time: when the
-- caller would have used up what it may, if it went on at its rate. Each request puts that off
-- by one interval, and none may put it off to more than a burst from now.
--
-- KEYS  1 the caller's
-- ARGV  1 µs between two requests at the rate  2 burst  3 a list: how many requests each
-- reply ok, and for each of the list 0, or in how many µs they would be in time
local interval, burst = tonumber(next_arg()), tonumber(next_arg())
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000000 + tonumber(t[2])
local most = at + burst * interval
local function keep(used)
  redis.call('SET', KEYS[1], int(used), 'PX', int(math.ceil((used - at) / 1000)))
end

local used = math.max(tonumber(redis.call('GET', KEYS[1]) or at), at)
if used > most then -- by another clock: that of a master before a failover
  used = most
  keep(used)
end
local reply, before = { 'ok' }, used
for _, n in ipairs(list()) do
  local next = used + tonumber(n) * interval
  if next > most then
    reply[#reply + 1] = int(next - most)
  else
    used = next
    reply[#reply + 1] = '0'
  end
end
if used > before then keep(used) end
return reply
