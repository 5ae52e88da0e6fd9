-- apply makes one change of a task that has not ended.
--
-- KEYS  1 task  2 batches  3 the runner's set of tasks
-- ARGV  1 id  2 runner the caller thinks the task has  3 lease it must have, or ''
--       4 op, or ''  5 channel of the task  6 the runner's inbox, or ''  7 slack in ms
--       8 ' statuses of a task that has not ended '
--       9 new status, or ''  10 ' statuses it may follow '  11 '1' if it is final
--       12 status of a task that waits for answers  13 of one that has them all
--       14 '1' to become visible  15 ttl, or ''  16 retain, or '', in ms
--       17 batches before the tail
--       18 order of the runner's change, or ''  19 ' a token for the inbox', or ''
--       20 '1' if the arguments stay after the end
--       then lists: fields (name, value), ask (key, method, params),
--       withdraw, answer (key, answer), take, moments (kind, age in ms, detail),
--       contents
-- reply ok | renew | again | final with the task, none, lost, gap, moved with the runner
local id, runner, lease, op = next_arg(), next_arg(), next_arg(), next_arg()
local events, inbox, slack, open = next_arg(), next_arg(), next_arg(), next_arg()
local to, from, final, waiting, working = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local visible, ttl, retain = next_arg(), next_arg(), next_arg()
local at_batch = tonumber(next_arg())
local order, token, keep_arguments = next_arg(), next_arg(), next_arg()
local set = list()
local ask, withdraw = list(), list()
local answer, take = list(), list()
local moments = list()
local contents = list()

local was = redis.call('HMGET', KEYS[1], 'status', 'lease', 'lastop', 'visible', 'created', 'ttl',
  'retain', 'batches', 'questions', 'version', 'order')
local status, created, life, kept = was[1], tonumber(was[5]), tonumber(was[6]), tonumber(was[7])
if not status then
  redis.call('ZREM', KEYS[3], id)
  return { 'none' }
end
if op ~= '' and was[3] == op then return reply('again') end
if not within(open, status) then return reply('final') end
if lease ~= '' and was[2] ~= lease then return { 'lost' } end
if holder(was[2]) ~= runner then return { 'moved', holder(was[2]) } end
if to ~= '' and not within(from, status) then return reply('final') end
local have = tonumber(was[8])
if at_batch > have then return { 'gap' } end
local skip = math.min(have - at_batch, #contents) -- these are there already

-- A change that was held up on its way must not replace newer ones of the runner, and its questions
-- have lost their caller: the runner makes one change after the other. A checkpoint belongs behind
-- the pieces that came before it: if there are more pieces, it is old.
if order ~= '' and tonumber(order) < tonumber(was[11] or '0') then
  order, ask = '', {}
  if to == '' then set = {} end
end
local old = have > at_batch + #contents
local changed = to ~= ''
for i = #set - 1, 1, -2 do
  if set[i] ~= 'checkpoint' then
    changed = true
  elseif old then
    table.remove(set, i + 1)
    table.remove(set, i)
  end
end
local function put(name, value)
  set[#set + 1], set[#set + 2], changed = name, value, true
end
if #ask + #withdraw + #answer + #take > 0 or was[9] and (order ~= '' or final == '1') then
  local questions = parse(was[9] or '')
  local touched, asked, settled = edit(questions, ask, withdraw, answer, take, order ~= '', op)
  if asked then status = waiting end
  if settled and status == waiting then status = working end
  if final == '1' then
    finish(questions)
    touched = #questions > 0
  end
  if touched then put('questions', format(questions)) end
end
if to ~= '' then status = to end
if status ~= was[1] then put('status', status) end

local time, keep = now(), kept
local promised = created + life + kept
if retain ~= '' and tonumber(retain) ~= kept then
  keep = tonumber(retain)
  put('retain', retain)
end
if visible == '1' and was[4] ~= '1' then put('visible', '1') end
if ttl ~= '' and tonumber(ttl) > life then
  life = tonumber(ttl)
  put('ttl', int(life))
end
if final == '1' then
  life = math.max(time - created, 0) + keep
  put('ttl', int(life))
end

local version = tonumber(was[10])
if changed then
  version = version + 1
  put('version', int(version))
  if token ~= '' then put('token', int(version)) end -- the token itself is not stored
  put('updated', int(time))
end
local pushed = push(KEYS[2], contents, skip)
if pushed > 0 then set[#set + 1], set[#set + 2] = 'batches', int(have + pushed) end
if op ~= '' then put('lastop', op) end
if order ~= '' and #set > 0 then set[#set + 1], set[#set + 2] = 'order', order end
if #moments > 0 then
  set[#set + 1], set[#set + 2] = 'events', note(redis.call('HGET', KEYS[1], 'events') or '', moments, time)
end
if #set > 0 then redis.call('HSET', KEYS[1], unpack(set)) end
if final == '1' then
  redis.call('ZREM', KEYS[3], id)
  redis.call('HDEL', KEYS[1], 'call', 'checkpoint', 'order')
  if keep_arguments == '' then redis.call('HDEL', KEYS[1], 'arguments') end
end
if changed or pushed > 0 then
  redis.call('PUBLISH', events, id .. ' ' .. int(version))
  if inbox ~= '' then
    redis.call('ZADD', KEYS[3], 'XX', int(version), id) -- skipped if this was its end
    redis.call('PUBLISH', inbox, id .. ' ' .. int(version) .. token)
  end
end
local needed = created + life
if final ~= '1' then needed = needed + keep end
local task = reply(needed > promised and 'renew' or 'ok')
-- Last, because an expiry that is already over deletes the keys.
if final == '1' then expire(created + life + tonumber(slack)) end
return task
