-- rerun notes as which task an ended one is run again, once.
--
-- KEYS  1 task
-- ARGV  1 id of the other task
-- reply ok with the id that was noted first | none
local as = next_arg()
local was = redis.call('HMGET', KEYS[1], 'op', 'rerun_as')
if not was[1] then return { 'none' } end
if not was[2] then redis.call('HSET', KEYS[1], 'rerun_as', as) end
return { 'ok', was[2] or as }
