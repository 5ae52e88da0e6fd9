-- append adds what the upstream streamed, and notes where it could be resumed.
--
-- KEYS  1 task  2 batches  3 segments
-- ARGV  1 id  2 lease  3 channel of the task  4 slack in ms
--       5 ' statuses of a task that has not ended '  6 7 batches and segments before
--       then lists: checkpoint (none or one), contents, segments
-- reply ok, none, final, lost, gap
local id, lease, events, slack, open = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local at_batch, at_segment = tonumber(next_arg()), tonumber(next_arg())
local checkpoint = list()
local contents = list()
local segments = list()

local was = redis.call('HMGET', KEYS[1], 'status', 'lease', 'version', 'batches', 'segments',
  'visible', 'created', 'ttl')
if not was[1] then return { 'none' } end
if not within(open, was[1]) then return { 'final' } end
if was[2] ~= lease then return { 'lost' } end
local have_batches, have_segments = tonumber(was[4]), tonumber(was[5])
local skip_batches = stored(have_batches, at_batch, #contents)
local skip_segments = stored(have_segments, at_segment, #segments)
if not (skip_batches and skip_segments) then return { 'gap' } end

-- An append that ends before the end of what is stored is an old one that was
-- held up on its way; its checkpoint is older than the one there.
local late = at_batch + #contents < have_batches or at_segment + #segments < have_segments
if #checkpoint > 0 and not late then redis.call('HSET', KEYS[1], 'checkpoint', checkpoint[1]) end

local batches = push(KEYS[2], contents, skip_batches)
local blocks = push(KEYS[3], segments, skip_segments)
if batches + blocks > 0 then
  redis.call('HSET', KEYS[1], 'batches', int(have_batches + batches), 'segments', int(have_segments + blocks))
  if was[6] ~= '1' then expire(tonumber(was[7]) + tonumber(was[8]) + tonumber(slack)) end
  redis.call('PUBLISH', events, id .. ' ' .. was[3])
end
return { 'ok' }
