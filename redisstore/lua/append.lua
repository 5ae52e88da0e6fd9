-- append adds pieces that the upstream streamed, and the checkpoint from which to resume it.
--
-- KEYS  1 task  2 batches
-- ARGV  1 id  2 lease  3 channel of the task  4 ' statuses of a task that has not ended '
--       5 batches before
--       then lists: checkpoint (none or one), contents
-- reply ok, none, final, lost, gap
local id, lease, events = next_arg(), next_arg(), next_arg()
local open, at = next_arg(), tonumber(next_arg())
local checkpoint = list()
local contents = list()

local was = redis.call('HMGET', KEYS[1], 'status', 'lease', 'version', 'batches')
if not was[1] then return { 'none' } end
if not within(open, was[1]) then return { 'final' } end
if was[2] ~= lease then return { 'lost' } end
local have = tonumber(was[4])
local skip = stored(have, at, #contents)
if not skip then return { 'gap' } end

-- If all pieces are stored, this append is a repeat, or was held up on its way. Its checkpoint came
-- with the first, and a newer one may be stored.
local late = #contents > 0 and skip == #contents
if #checkpoint > 0 and not late then redis.call('HSET', KEYS[1], 'checkpoint', checkpoint[1]) end

local batches = push(KEYS[2], contents, skip)
if batches > 0 then
  redis.call('HSET', KEYS[1], 'batches', int(have + batches))
  redis.call('PUBLISH', events, id .. ' ' .. was[3])
end
return { 'ok' }
