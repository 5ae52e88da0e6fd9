-- count says how many bytes tasks of a list take.
--
-- KEYS  1 the list  2 the bytes of its tasks  3 until when they count
-- ARGV  list of id, bytes, and until when in ms
-- reply ok
local time, tasks = now(), list()
for i = 1, #tasks, 3 do count(tasks[i], tasks[i + 1], tonumber(tasks[i + 2]), time) end
return { 'ok' }
