-- session_put stores the state of a client session, if its revision is the one the caller knows. A
-- repeat after a lost reply is known by its operation id. Each write makes a new revision, even if
-- Redis has gone back in between: it is made of the time and a random number, and is above the last
-- one.
--
-- KEYS  1 session  2 the set of changes, if there is a channel
-- ARGV  1 id  2 revision; 0 makes it  3 state  4 ms to live  5 channel of the event, or ''  6 operation id
--       7 its owner, when it is made  8 a random number below 4096
-- reply ok and the new revision; moved
local id, rev, state, ttl, events, op = next_arg(), tonumber(next_arg()), next_arg(), next_arg(), next_arg(), next_arg()
local owner, chance = next_arg(), tonumber(next_arg())
local was = redis.call('HMGET', KEYS[1], 'rev', 'op')
local have = tonumber(was[1] or '0')
if was[2] ~= op then
  if have ~= rev then return { 'moved' } end
  have = math.max(now() * 4096 + chance, rev + 1)
  redis.call('HSET', KEYS[1], 'rev', int(have), 'state', state, 'op', op)
  if owner ~= '' then redis.call('HSET', KEYS[1], 'owner', owner) end
  if rev > 0 and events ~= '' then
    changed(KEYS[2], id)
    redis.call('PUBLISH', events, id .. ' ' .. int(have))
  end
end
redis.call('HSET', KEYS[1], 'format', format)
redis.call('PEXPIRE', KEYS[1], ttl)
return { 'ok', int(have) }
