-- Questions live in one field of the task, so that reading a task is one HMGET. A question is seven
-- strings, each written as <length>:<bytes>, and questions.go reads and writes the same form:
local KEY, METHOD, PARAMS, STATE, ANSWER, OP = 1, 2, 3, 5, 6, 7 -- 4 was a claim, of older versions
-- STATE goes open -> answered -> taken, or open -> withdrawn; OP took the answer. A question that
-- has been closed has an empty METHOD and PARAMS. An ANSWER that was taken is kept until the next
-- change of the runner, which has it by then, and is NONE from then on.
local NONE = '{}'

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

-- close ends a question. Its key stays.
local function close(q, state, answer)
  q[STATE], q[ANSWER], q[METHOD], q[PARAMS] = state, answer, '', ''
end

-- edit makes the changes to the questions. has says that the runner has the answers that other
-- operations took. It returns whether any changed, whether one was added, and whether one was closed
-- and all are closed now.
local function edit(questions, ask, withdraw, answer, take, has, op)
  local changed, asked, closed, open = false, false, false, false
  for i = 1, #ask, 3 do
    if not questions[ask[i]] then
      local q = { ask[i], ask[i + 1], ask[i + 2], '', 'open', '', '' }
      questions[#questions + 1], questions[ask[i]] = q, q
      changed, asked = true, true
    end
  end
  for _, key in ipairs(withdraw) do
    local q = questions[key]
    if q and q[STATE] == 'open' then
      close(q, 'withdrawn', '')
      changed, closed = true, true
    end
  end
  for i = 1, #answer, 2 do
    local q = questions[answer[i]]
    if q and q[STATE] == 'open' then
      close(q, 'answered', answer[i + 1])
      changed, closed = true, true
    end
  end
  for _, key in ipairs(take) do
    local q = questions[key]
    if q and q[STATE] == 'answered' then
      q[STATE], q[OP], changed = 'taken', op, true
    end
  end
  for _, q in ipairs(questions) do
    open = open or q[STATE] == 'open'
    if has and q[STATE] == 'taken' and q[OP] ~= op and q[ANSWER] ~= NONE then
      q[ANSWER], q[OP], changed = NONE, '', true
    end
  end
  return changed, asked, closed and not open
end

-- finish keeps, of the questions of a task that has ended, only which there were, and which of
-- them had an answer.
local function finish(questions)
  for _, q in ipairs(questions) do
    if q[STATE] == 'open' then
      close(q, 'withdrawn', '')
    elseif q[STATE] ~= 'withdrawn' then
      q[STATE], q[ANSWER], q[OP] = 'taken', NONE, ''
    end
  end
end
