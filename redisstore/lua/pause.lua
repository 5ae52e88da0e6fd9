-- pause notes that an operator has paused calls, unless that stands there, and tells the replicas.
--
-- KEYS  1 what is paused
-- ARGV  1 upstream/tool  2 operator  3 channel
-- reply ok, and the note that counts: since when in ms, operator
local what, by, events = next_arg(), next_arg(), next_arg()
local note = redis.call('HGET', KEYS[1], what)
if not note then
  note = int(now()) .. ' ' .. by
  redis.call('HSET', KEYS[1], what, note)
end
redis.call('PUBLISH', events, what)
return { 'ok', note }
