-- touch writes a field of a task with its present value. This changes only how much has been
-- written: WAIT then waits for everything up to here.
--
-- KEYS  1 task
-- ARGV  none
-- reply ok
local op = redis.call('HGET', KEYS[1], 'op')
if op then redis.call('HSET', KEYS[1], 'op', op) end
return { 'ok' }
