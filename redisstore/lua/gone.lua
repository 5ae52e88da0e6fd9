-- gone names the replicas that are gone.
--
-- KEYS  1 the replicas
-- ARGV  1 after how many ms more a replica may be forgotten  2 the replica that asks
-- reply ok, the time in ms, its own entry, then for each: replica, its entry, '1' if ten of its ttls have passed,
--       '1' if it may be forgotten
local time, patience, own = now(), tonumber(next_arg()), next_arg()
local entries = redis.call('HGETALL', KEYS[1])
local out = { 'ok', int(time), redis.call('HGET', KEYS[1], own) or '' }
for i = 1, #entries, 2 do
  local expires, ttl = string.match(entries[i + 1], '^(%d+) (%d+)')
  if tonumber(expires) <= time then
    out[#out + 1] = entries[i]
    out[#out + 1] = entries[i + 1]
    out[#out + 1] = time >= tonumber(expires) + 9 * tonumber(ttl) and '1' or ''
    out[#out + 1] = time >= tonumber(expires) + patience and '1' or ''
  end
end
return out
