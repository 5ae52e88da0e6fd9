-- rate takes requests out of what a caller may send (GCRA). What is kept is one time: when the
-- caller would have used up what it may, if it went on at its rate. Each request puts that off
-- by one interval, and none may put it off to more than a burst from now.
--
-- KEYS  1 the caller's
-- ARGV  1 µs between two requests at the rate  2 burst  3 how many requests
-- reply ok; full and in how many µs they would be in time
local interval, burst, n = tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
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
local next = used + n * interval
if next > most then return { 'full', int(next - most) } end
keep(next)
return { 'ok' }
