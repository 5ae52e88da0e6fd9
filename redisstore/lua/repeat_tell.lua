-- repeat_tell tells the replicas of a client whose calls may be picked up.
--
-- KEYS  1 the clients that have calls which nobody waits for, by the time until when
-- ARGV  1 client, or '' to leave the set as it is  2 life in ms  3 channel  4 message
-- reply ok
local client, life, events, message = next_arg(), tonumber(next_arg()), next_arg(), next_arg()
if client ~= '' then
  local at = now()
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(at))
  local has = redis.call('ZSCORE', KEYS[1], client)
  if not has or tonumber(has) < at + life then redis.call('ZADD', KEYS[1], int(at + life), client) end
  if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIREAT', KEYS[1], int(at + life)) end
end
redis.call('PUBLISH', events, message)
return { 'ok' }
