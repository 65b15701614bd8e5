-- Accept jobs, or say why not: each for itself, in their order. Not allow-oom: a full store admits nothing.
-- ARGV[3] JSON list of jobs: id queue priority tenant cost kind? deadline_ms? (relative) not_before_ms? (relative)
--   max_losses? weight? webhook? metadata? validate_ms batch? line? custom_id? batch_fence? must_meet_deadline?
--   silent?
--   and the fields of an idempotency key (see answered_already)
-- ARGV[4..] their request payloads
-- Reply: list of 'created' | 'exists' | 'conflict' | 'full' | 'shed' | 'infeasible' | 'stale', the id that stands for
--   the request; flat
local jobs = cjson.decode(ARGV[3])

-- Most calls bring only new jobs, which one command tells.
local function num_known()
  local names = {}
  for index, job in ipairs(jobs) do names[index] = job_key(job.id) end
  return redis.call('EXISTS', unpack(names))
end

local is_all_new, created = num_known() == 0, {}
local function is_known(id)
  return created[id] or (not is_all_new and redis.call('EXISTS', job_key(id)) == 1)
end

local ticks = {}
local function is_of_a_lost_tick(job)
  if not job.batch then return false end
  local tick = job.batch .. '/' .. job.batch_fence
  if ticks[tick] == nil then ticks[tick] = holds(job.batch, job.batch_fence) end
  return not ticks[tick]
end

-- The share of what is offered that is taken follows the waits: once a second less of it while their 95th percentile is
-- above 1.5 times the target, more while it is below 0.8 times. A job that nobody claims counts by its age.
local function oldest_wait_ms(queue)
  local oldest = 0
  for _, priority in ipairs({ 'realtime', 'standard' }) do
    local head = redis.call('ZRANGE', ready_key(queue, priority), 0, 0)[1]
    local arrival_ms = head and redis.call('HGET', job_key(head), 'arrival_ms')
    if arrival_ms then oldest = math.max(oldest, NOW - tonumber(arrival_ms)) end
  end
  return oldest
end

local function take_share(queue)
  local key = load_key(queue)
  local load = redis.call('HMGET', key, 'share', 'share_ms', 'share_credit', 'wait_p95_ms')
  local share, adjusted_ms = tonumber(load[1] or '1'), tonumber(load[2] or '0')
  if NOW - adjusted_ms >= 1000 then
    local wait_ms = math.max(tonumber(load[4] or '0'), oldest_wait_ms(queue))
    if wait_ms > 1.5 * LIMITS.target_wait_ms then share = math.max(0.05, share * 0.8) end
    if wait_ms < 0.8 * LIMITS.target_wait_ms then share = math.min(1, share * 1.1) end
    -- What was seen fades, since little work means little to be seen.
    local fading_ms = tonumber(load[4] or '0') * 0.9
    redis.call('HSET', key, 'share', share, 'share_ms', int(NOW), 'wait_p95_ms', fading_ms)
  end
  local credit = tonumber(load[3] or '0') + share
  redis.call('HSET', key, 'share_credit', credit >= 1 and credit - 1 or credit)
  return credit >= 1
end

-- An estimate, from above: all live work of this priority and the more urgent ones is served first, at the measured
-- speed, and then this job at the measured pace. Without a measurement everything is feasible.
local function finish_estimate_ms(job)
  write_gathered()
  local load = redis.call('HMGET', load_key(job.queue), 'speed', 'pace', 'cost:realtime', 'cost:standard', 'cost:bulk')
  if not load[1] or not load[2] then return 0 end
  local ahead = 0
  for index, priority in ipairs(PRIORITIES) do
    ahead = ahead + tonumber(load[index + 2] or '0')
    if priority == job.priority then break end
  end
  return ahead / tonumber(load[1]) + job.cost * tonumber(load[2])
end

local switches = redis.call('HMGET', switches_key(), 'shed_bulk', 'shed_standard')

-- Why a new job is not taken; nil when it is.
local function refusal(job)
  if is_of_a_lost_tick(job) then return 'stale' end
  local level, priority = pressure(job.queue), job.priority
  if level == 4 then return 'full' end
  if priority == 'bulk' and (level >= 2 or switches[1]) then return 'shed' end
  if priority == 'standard' and (level >= 3 or switches[2]) then return 'shed' end
  if LIMITS.target_wait_ms > 0 and priority ~= 'realtime' and not take_share(job.queue) then return 'shed' end
  if job.must_meet_deadline and job.deadline_ms and finish_estimate_ms(job) > job.deadline_ms then
    return 'infeasible'
  end
end

-- Fields of the record that verbs pass on as they came.
local PASSED_ON = { 'kind', 'validate_ms', 'weight', 'webhook', 'metadata', 'batch', 'line', 'custom_id' }

local function create(job, request)
  job.request, job.fields = request, {}
  for _, name in ipairs(PASSED_ON) do
    if job[name] then
      job.fields[#job.fields + 1] = name
      job.fields[#job.fields + 1] = tostring(job[name])
    end
  end
  if job.silent then
    job.fields[#job.fields + 1] = 'silent'
    job.fields[#job.fields + 1] = '1'
  end
  put_job(job)
  if is_listed(job.id, job.batch) then relist(job.id, job.tenant, nil, 'queued', int(NOW)) end
  if job.batch then place(batch_live_key(job.batch), job.id, int(job.line)) end
  remember_answer(job, job.id)
  local load = load_of(job.queue)
  load.jobs, load.bytes = load.jobs + 1, load.bytes + bytes_of(job)
  created[job.id] = true
end

local function enqueue(job, request)
  local known_id, is_same = answered_already(job)
  if known_id then return is_same and 'exists' or 'conflict', known_id end
  if is_known(job.id) then return 'exists', job.id end
  local why_not = refusal(job)
  if why_not then return why_not, job.id end
  create(job, request)
  return 'created', job.id
end

local replies = {}
for index, job in ipairs(jobs) do
  replies[2 * index - 1], replies[2 * index] = enqueue(job, ARGV[index + 3])
end
return replies
