-- repeat_note gives a call that its client may repeat a state.
--
-- KEYS  1 the calls of the client
-- ARGV  1 id  2 state  3 ' states that it may follow '  4 life in ms  5 '1' if any later repeat counts
--       6 stream, or '-'  7 what the calls have in common
-- reply the state that the call has then
--
-- A call is a line: state, since when in ms, until when, mode (0: only the next call counts, 1: any, 2: the
-- client has gone on to other work), op of whoever has taken it or '-', stream, what the calls have in common.
local id, state, from, life, mode, stream, call = next_arg(), next_arg(), next_arg(), tonumber(next_arg()), next_arg(), next_arg(), next_arg()
local at = now()
local had, since, op = 'none', int(at), '-'
local was = redis.call('HGET', KEYS[1], id)
if was then
  local time, kept, taken
  had, time, kept, taken = string.match(was, '^(%S+) (%d+) %d+ (%S+) (%S+) ')
  if had == state then since, mode, op = time, kept, taken end
end
if not within(from, had) then return { had } end
redis.call('HSET', KEYS[1], id, table.concat({ state, since, int(at + life), mode, op, stream, call }, ' '))
if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIREAT', KEYS[1], int(at + life)) end
return { state }
