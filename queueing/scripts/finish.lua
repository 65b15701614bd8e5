-- End leased jobs with their results, each once. A job that is done after its deadline is expired, never completed.
-- allow-oom: a full store must drain.
-- ARGV[3..] three for each job: words with a blank between, '-' for none: id, fence, state, failure code, stage of an
--   expiry, tokens it really took (none where they are not counted); result JSON; stages JSON or ''
-- Reply: list of the states they ended in, also to a repeat of the call that ended one; 'stale' where the lease was not
--   held
local KNOWN = { 'fence', 'finished_fence', 'deadline_ms', 'weight', 'claimed_ms', unpack(ENDING) }

-- How fast a queue is served: the best of what windows of unbroken work showed, forgotten slowly; and how long one job
-- takes per token. Both feed the deadline check of enqueue. Read once a call, written once.
local WINDOW_MS = 2000
local speeds = {}
local function speed_of(queue)
  if not speeds[queue] then
    local load = redis.call('HMGET', load_key(queue), 'window_ms', 'window_tokens', 'speed', 'pace')
    speeds[queue] = { begun_ms = tonumber(load[1]) or NOW, done = tonumber(load[2]) or 0, best = tonumber(load[3]),
      pace = tonumber(load[4]) }
  end
  return speeds[queue]
end

local function note_speed(job, tokens)
  local speed = speed_of(job.queue)
  speed.done = speed.done + tokens
  if NOW - speed.begun_ms >= WINDOW_MS then
    local best, seen = speed.best or 0, speed.done / (NOW - speed.begun_ms)
    speed.best = seen > best and seen or best * 0.95 + seen * 0.05
    speed.begun_ms, speed.done = NOW, 0
  end
  if tokens > 0 then
    local pace = (NOW - tonumber(job.claimed_ms)) / tokens
    speed.pace = speed.pace and speed.pace * 0.9 + pace * 0.1 or pace
  end
end

local function write_speeds()
  for queue, speed in pairs(speeds) do
    local key = load_key(queue)
    redis.call('HSET', key, 'window_ms', int(speed.begun_ms), 'window_tokens', int(speed.done))
    if speed.best then redis.call('HSET', key, 'speed', speed.best) end
    if speed.pace then redis.call('HSET', key, 'pace', speed.pace) end
  end
end

-- The claim charged what the job was expected to take.
local function settle(job, tokens)
  charge(job.queue, job.priority, job.tenant, (tokens - tonumber(job.cost)) / tonumber(job.weight or '1'))
  account(job.tenant, job.queue, 'tokens', tokens)
  note_speed(job, tokens)
end

local function finish(head, result, stages)
  local id, fence, state, code, stage, tokens = string.match(head, '^(%S+) (%d+) (%S+) (%S+) (%S+) (%S+)$')
  local job = read_job(id, KNOWN)
  if job.finished_fence == fence then return job.state end
  if not entitles(job, fence) then
    if job.queue then count(job.queue, 'stale') end
    return 'stale'
  end
  local ending = { state = state, result = result, fields = { 'finished_fence', fence } }
  ending.code, ending.stage = code ~= '-' and code or nil, stage ~= '-' and stage or nil
  if state == 'completed' and NOW > (tonumber(job.deadline_ms) or math.huge) then
    ending.state, ending.result, ending.code, ending.stage = 'expired', nil, 'deadline_exceeded', 'delivery'
    ending.message = 'the deadline passed before the result was delivered'
  end
  if stages ~= '' then
    ending.fields[3] = 'stages'
    ending.fields[4] = stages
  end
  if tokens ~= '-' then settle(job, tonumber(tokens)) end
  end_job(job, ending)
  return ending.state
end

local states = {}
for index = 3, #ARGV, 3 do states[#states + 1] = finish(ARGV[index], ARGV[index + 1], ARGV[index + 2]) end
write_speeds()
return states
