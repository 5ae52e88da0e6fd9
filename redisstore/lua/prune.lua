-- prune takes tasks off a list that were found to be gone. A young entry stays, because its task
-- may be about to be stored.
--
-- KEYS  1 the list
-- ARGV  1 youth in ms, then the list of ids
-- reply ok
local before = now() - tonumber(next_arg())
for _, id in ipairs(list()) do
  local since = redis.call('ZSCORE', KEYS[1], id)
  if since and tonumber(since) / 1000 < before then redis.call('ZREM', KEYS[1], id) end
end
return { 'ok' }
