-- Every script begins with this. In front of it scripts.go defines format, and summary, the names
-- of the fields of a shim.Task without its outcome.
--
-- Reply codes, the first string of each reply: ok, renew (ok, and the list index has to live
-- longer), again (this operation has been done), none (the task does not exist), final (it has
-- ended), lost (another lease), gap (pieces are missing before these), taken (the id is another
-- operation's, or the stream another replica's), moved (the runner is another than the caller
-- thought), skip (another replica's), unread (the record cannot be read), full (the bound is
-- reached), held (another stream has the question), has (the client has it).

-- next_arg and list read ARGV from the front: single values first, then lists,
-- each preceded by its length.
local read = 0
local function next_arg()
  read = read + 1
  return ARGV[read]
end
local function list()
  local out = {}
  for i = 1, tonumber(next_arg()) do out[i] = next_arg() end
  return out
end

-- int spells a whole number: tostring would turn a time in ms into 1.7e+12.
local function int(n) return string.format('%.0f', n) end

-- now is the store's clock in ms.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- The number of an entry of a Redis Stream is its id: a time, in parts of a ms.
local per_ms = 1024
local function number(entry) return string.match(entry[1], '^%d+') end

-- within tells whether a word is in a list of words, ' like these '.
local function within(words, word)
  return string.find(words, ' ' .. word .. ' ', 1, true) ~= nil
end

-- holder is the replica of a lease, 'replica#adoption'.
local function holder(lease)
  return string.match(lease, '^([^#]*)#') or ''
end

-- reply reads the task in KEYS[1] back.
local function reply(code, fields)
  local r = redis.call('HMGET', KEYS[1], unpack(fields or summary))
  table.insert(r, 1, code)
  return r
end

-- note adds moments (kind, age in ms, detail) to the timeline of a task: one line each, with the
-- time in ms in place of the age. A moment equal to the last one is a repeat. At most 64 stay: the
-- first, and the newest.
local function note(before, moments, time)
  for i = 1, #moments, 3 do
    local kind, detail = moments[i], moments[i + 2]
    local last, same = string.match('\n' .. before, '^.*\n(%S+) %d+ ([^\n]*)\n$')
    if last ~= kind or same ~= detail then
      before = before .. kind .. ' ' .. int(time - tonumber(moments[i + 1])) .. ' ' .. detail .. '\n'
    end
  end
  if #before < 640 then return before end -- too short for 64 lines
  local _, n = string.gsub(before, '\n', '\n')
  for i = 65, n do before = string.gsub(before, '^([^\n]*\n)[^\n]*\n', '%1', 1) end
  return before
end

-- changed notes a change of a client session in the set of changes, for a replica that misses its event. The score is
-- above all others. The set goes when nothing has changed for ten minutes.
local function changed(key, session)
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', key, int(math.max(now() * per_ms, tonumber(newest or '0') + 1)), session)
  redis.call('PEXPIRE', key, 600000)
end

-- push appends all values after the first skip and returns how many it appended.
local function push(key, values, skip)
  for i = skip + 1, #values do redis.call('RPUSH', key, values[i]) end
  return #values - skip
end

-- expire ends the task in KEYS[1..2] at a time. Only a task that has ended expires.
local function expire(at)
  for i = 1, 2 do redis.call('PEXPIREAT', KEYS[i], int(at)) end
end
