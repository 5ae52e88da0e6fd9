-- append adds what the upstream streamed, and notes where it could be resumed.
--
-- KEYS  1 task  2 batches  3 segments
-- ARGV  1 id  2 lease  3 channel of the task  4 slack in ms  5 bytes an event may show
--       6 ' statuses of a task that has not ended '  7 8 batches and segments before
--       then lists: checkpoint (none or one), contents, segments
-- reply ok, none, final, lost, gap
local id, lease, events, slack = next_arg(), next_arg(), next_arg(), next_arg()
local most, open = tonumber(next_arg()), next_arg()
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

-- An append of which all is stored is a repeat, or one that was held up on its way. Its
-- checkpoint came with the first, and there may be a newer one.
local late = #contents + #segments > 0 and skip_batches + skip_segments == #contents + #segments
if #checkpoint > 0 and not late then redis.call('HSET', KEYS[1], 'checkpoint', checkpoint[1]) end

-- shown spells pieces for the event, where they are small: their kind, how many come
-- before them, and each with its length. Who has come that far need not read them.
local function shown(kind, before, values, skip)
  local text = ' ' .. kind .. ' ' .. int(before + skip)
  for i = skip + 1, #values do
    text = text .. ' ' .. #values[i] .. ':' .. values[i]
    if #text > most then return '' end
  end
  return text
end

local batches = push(KEYS[2], contents, skip_batches)
local blocks = push(KEYS[3], segments, skip_segments)
if batches + blocks > 0 then
  redis.call('HSET', KEYS[1], 'batches', int(have_batches + batches), 'segments', int(have_segments + blocks))
  if was[6] ~= '1' then expire(tonumber(was[7]) + tonumber(was[8]) + tonumber(slack)) end
  local text = ''
  if blocks == 0 then text = shown('b', at_batch, contents, skip_batches) end
  if batches == 0 then text = shown('s', at_segment, segments, skip_segments) end
  redis.call('PUBLISH', events, id .. ' ' .. was[3] .. text)
end
return { 'ok' }
