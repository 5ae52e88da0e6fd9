-- Questions live in one field of the task, so that reading a task is one HMGET.
-- A question is seven strings, each written as <length>:<bytes>, and record.go
-- reads and writes the same form:
local KEY, METHOD, PARAMS, CLAIM, STATE, ANSWER, OP = 1, 2, 3, 4, 5, 6, 7
-- STATE goes open -> answered -> taken, or open -> withdrawn; OP took the answer.

local function parse(s)
  local out, at = {}, 1
  while at <= #s do
    local q = {}
    for i = KEY, OP do
      local colon = string.find(s, ':', at, true)
      local n = tonumber(string.sub(s, at, colon - 1))
      q[i] = string.sub(s, colon + 1, colon + n)
      at = colon + n + 1
    end
    out[#out + 1] = q
    out[q[KEY]] = q
  end
  return out
end

local function format(questions)
  local out = {}
  for _, q in ipairs(questions) do
    for i = KEY, OP do
      out[#out + 1] = #q[i] .. ':'
      out[#out + 1] = q[i]
    end
  end
  return table.concat(out)
end

-- edit makes the changes to the questions. It returns them, whether anything
-- changed, whether one was added, and whether none is open after one was closed.
local function edit(questions, ask, withdraw, claim, by, over, answer, take, op)
  local changed, asked, closed, open = false, false, false, false
  for i = 1, #ask, 4 do
    if not questions[ask[i]] then
      local q = { ask[i], ask[i + 1], ask[i + 2], ask[i + 3], 'open', '', '' }
      questions[#questions + 1], questions[ask[i]] = q, q
      changed, asked = true, true
    end
  end
  for _, key in ipairs(withdraw) do
    local q = questions[key]
    if q and q[STATE] == 'open' then
      q[STATE], changed, closed = 'withdrawn', true, true
    end
  end
  local void = { [''] = true }
  for _, stream in ipairs(over) do void[stream] = true end
  for _, key in ipairs(claim) do
    local q = questions[key]
    if q and q[STATE] == 'open' and q[CLAIM] ~= by and void[q[CLAIM]] then
      q[CLAIM], changed = by, true
    end
  end
  for i = 1, #answer, 2 do
    local q = questions[answer[i]]
    if q and q[STATE] == 'open' then
      q[STATE], q[ANSWER], changed, closed = 'answered', answer[i + 1], true, true
    end
  end
  for _, key in ipairs(take) do
    local q = questions[key]
    if q and q[STATE] == 'answered' then
      q[STATE], q[OP], changed = 'taken', op, true
    end
  end
  for _, q in ipairs(questions) do open = open or q[STATE] == 'open' end
  return changed, asked, closed and not open
end
