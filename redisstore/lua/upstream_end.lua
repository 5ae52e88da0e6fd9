-- upstream_end removes an upstream session if that is over and no other replica needs
-- it.
--
-- KEYS  1 upstream session
-- ARGV  1 replica  2 '1' if it is over, '' if that is for others to have said
-- reply ok and the state it had; none
local own, over = 'h:' .. next_arg(), next_arg()
local all = redis.call('HGETALL', KEYS[1])
if #all == 0 then return { 'none' } end
local at, state, held = now(), '', false
for i = 1, #all, 2 do
  local name, value = all[i], all[i + 1]
  if name == 'state' then
    state = value
  elseif name == 'over' then
    over = '1'
  elseif string.sub(name, 1, 2) == 'h:' and name ~= own and tonumber(value) > at then
    held = true
  end
end
if over == '' then return { 'none' } end
if held then
  redis.call('HSET', KEYS[1], 'over', '1')
  return { 'none' }
end
redis.call('DEL', KEYS[1])
return { 'ok', state }
