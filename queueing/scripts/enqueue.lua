-- Accept a job, or say why not. Not allow-oom: a full store admits nothing.
-- ARGV[3] JSON: id queue priority tenant cost patience_ms deadline_ms? (relative) not_before_ms (relative)
--   max_losses? weight? webhook? metadata? validate_ms batch? line? custom_id? batch_fence? must_meet_deadline?
--   silent?
--   and the fields of an idempotency key (see answered_already)
-- ARGV[4] request payload
-- Reply: {'created' | 'exists' | 'conflict' | 'full' | 'shed' | 'infeasible' | 'stale', id}
local job = cjson.decode(ARGV[3])

local known_id, is_same = answered_already(job)
if known_id then return { is_same and 'exists' or 'conflict', known_id } end
if redis.call('EXISTS', job_key(job.id)) == 1 then return { 'exists', job.id } end
if job.batch then
  if not holds(job.batch, job.batch_fence) then return { 'stale', job.id } end
end

-- How full the queue is, of jobs or of bytes, decides what it still admits. A level is left only some way below where
-- it was entered, so that a queue at the border does not flutter.
local LEVELS = { { at = 0.6, name = 'warn' }, { at = 0.8, name = 'bulk' }, { at = 0.95, name = 'standard' },
  { at = 1.0, name = 'full' } }
local HYSTERESIS = 0.05
local function pressure()
  local load = redis.call('HMGET', load_key(job.queue), 'bytes', 'pressure')
  local fill = math.max(num_queued(job.queue) / LIMITS.max_queued_jobs,
    tonumber(load[1] or '0') / LIMITS.max_queued_bytes)
  local before, now = tonumber(load[2] or '0'), 0
  for level, border in ipairs(LEVELS) do
    if fill >= border.at or (level <= before and fill > border.at - HYSTERESIS) then now = level end
  end
  if now ~= before then redis.call('HSET', load_key(job.queue), 'pressure', now) end
  return now
end

local level = pressure()
if level == 4 then return { 'full', job.id } end
local switches = redis.call('HMGET', switches_key(), 'shed_bulk', 'shed_standard')
if job.priority == 'bulk' and (level >= 2 or switches[1]) then return { 'shed', job.id } end
if job.priority == 'standard' and (level >= 3 or switches[2]) then return { 'shed', job.id } end

-- The share of what is offered that is taken follows the waits: once a second less of it while their 95th percentile is
-- above 1.5 times the target, more while it is below 0.8 times. A job that nobody claims counts by its age.
local function oldest_wait_ms()
  local oldest = 0
  for _, priority in ipairs({ 'realtime', 'standard' }) do
    local head = redis.call('ZRANGE', ready_key(job.queue, priority), 0, 0)[1]
    local arrival_ms = head and redis.call('HGET', job_key(head), 'arrival_ms')
    if arrival_ms then oldest = math.max(oldest, NOW - tonumber(arrival_ms)) end
  end
  return oldest
end

local function take_share()
  local key = load_key(job.queue)
  local load = redis.call('HMGET', key, 'share', 'share_ms', 'share_credit', 'wait_p95_ms')
  local share, adjusted_ms = tonumber(load[1] or '1'), tonumber(load[2] or '0')
  if NOW - adjusted_ms >= 1000 then
    local wait_ms = math.max(tonumber(load[4] or '0'), oldest_wait_ms())
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

if LIMITS.target_wait_ms > 0 and job.priority ~= 'realtime' and not take_share() then return { 'shed', job.id } end

-- An estimate, from above: all live work of this priority and the more urgent ones is served first, at the measured
-- speed, and then this job at the measured pace. Without a measurement everything is feasible.
local function finish_estimate_ms()
  local load = redis.call('HMGET', load_key(job.queue), 'speed', 'pace', 'cost:realtime', 'cost:standard', 'cost:bulk')
  if not load[1] or not load[2] then return 0 end
  local ahead = 0
  for index, priority in ipairs(PRIORITIES) do
    ahead = ahead + tonumber(load[index + 2] or '0')
    if priority == job.priority then break end
  end
  return ahead / tonumber(load[1]) + job.cost * tonumber(load[2])
end

if job.must_meet_deadline and job.deadline_ms and finish_estimate_ms() > job.deadline_ms then
  return { 'infeasible', job.id }
end

local deadline_ms = job.deadline_ms and NOW + job.deadline_ms
local due_ms = NOW + job.patience_ms
if deadline_ms and deadline_ms < due_ms then due_ms = deadline_ms end
local fields = { 'cost', int(job.cost), 'validate_ms', tostring(job.validate_ms) }
local function add(name, value)
  if value ~= nil then
    fields[#fields + 1] = name
    fields[#fields + 1] = type(value) == 'number' and int(value) or value
  end
end
if job.weight then
  fields[#fields + 1] = 'weight'
  fields[#fields + 1] = tostring(job.weight)
end
add('deadline_ms', deadline_ms)
add('max_losses', job.max_losses)
add('webhook', job.webhook)
add('metadata', job.metadata)
add('batch', job.batch)
add('line', job.line)
add('custom_id', job.custom_id)
add('silent', job.silent and '1' or nil)
put_job(job.id, job.queue, job.priority, job.tenant, ARGV[4], due_ms, NOW + job.not_before_ms, deadline_ms, fields)
if is_listed(job.id, job.batch) then relist(job.id, job.tenant, nil, 'queued', int(NOW)) end
if job.batch then redis.call('ZADD', batch_live_key(job.batch), int(job.line), job.id) end
remember_answer(job, job.id)
return { 'created', job.id }
