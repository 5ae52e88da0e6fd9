-- repeat_take takes the oldest call of a client that nobody waits for and that is the same as a new one.
--
-- KEYS  1 the calls of the client (repeat_note has their form)
-- ARGV  1 what the calls have in common  2 op  3 how long after it was left only the next call may take it, in ms
--       4 '1' if a call that somebody waits for does not count  5 life of the taken call in ms
-- reply taken with the id, awaited, none, or none with '0' if the client has no calls
local call, op, soon, last, life = next_arg(), next_arg(), tonumber(next_arg()), next_arg(), tonumber(next_arg())
local at = now()
local all = redis.call('HGETALL', KEYS[1])
local id, oldest, line, awaited
for i = 1, #all, 2 do
  local state, since, till, mode, by, rest = string.match(all[i + 1], '^(%S+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  local same = string.match(rest, ' (%S*)$') == call
  if same and state == 'taken' and by == op then return { 'taken', all[i] } end
  if same and (state == 'awaited' or state == 'taken') then awaited = true end
  local may = mode == '1' or mode == '0' and tonumber(since) + soon >= at
  if same and state == 'left' and may and tonumber(till) > at and (not oldest or tonumber(since) < oldest) then
    id, oldest, line = all[i], tonumber(since), mode .. ' ' .. op .. ' ' .. rest
  end
end
if id then
  redis.call('HSET', KEYS[1], id, 'taken ' .. int(at) .. ' ' .. int(at + life) .. ' ' .. line)
  if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIREAT', KEYS[1], int(at + life)) end
  return { 'taken', id }
end
if awaited and last ~= '1' then return { 'awaited' } end
for i = 1, #all, 2 do
  local passed, n = string.gsub(all[i + 1], '^(left %d+ %d+) 0 ', '%1 2 ')
  if n > 0 then redis.call('HSET', KEYS[1], all[i], passed) end
end
return { 'none', int(#all) }
