-- Lease up to `limit` jobs to a worker, most urgent first, after taking back what was lost and ending what is late.
-- allow-oom: a full store must drain.
-- ARGV[3] queue, ARGV[4] worker, ARGV[5] limit, ARGV[6] least urgent priority that may be claimed, 0 realtime .. 2
-- ARGV[7] how many claims the worker holds, ARGV[8] id of this call or '': a repeat of the last call gets its answer
-- Reply: now_ms, then two for each job: words with a blank between, '-' for none: id, fence, priority, due_ms,
--   arrival_ms, deadline_ms, losses, attempts, 1 when it must run alone, kind, tenant; and its request. Flat
-- Order: the highest priority with work; in it the tenant with the least service; of that tenant the earliest due time.
-- One eighth of the service, in tokens, goes to whatever is most overdue in any priority.
-- A job that one more loss would make dead is suspected of killing its workers: it goes alone to a worker that holds
-- nothing. One worker at a time sees to them: when a suspect's turn has come it gets nothing more until it is idle. All
-- others pass suspects over and go on.
local queue, worker, limit, max_level = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local num_held, call = tonumber(ARGV[7]), ARGV[8]
local OVERDUE_SHARE = 8

local READ = { 'tenant', 'priority', 'cost', 'weight', 'batch', 'due_ms', 'arrival_ms', 'deadline_ms', 'losses',
  'max_losses', 'attempts', 'fence', 'first_claim_ms', 'kind' }

-- Read once, however often it is looked at before its turn comes.
local jobs = {}
local function job_of(id)
  jobs[id] = jobs[id] or read_job(id, READ)
  return jobs[id]
end

-- An id without a record is nobody's job, whoever put it there: it is taken out of where it stands, and passed over.
local function has_record(id) return job_of(id).tenant ~= nil end

local function is_suspect(id)
  local job = job_of(id)
  local max_losses = max_losses_of(job)
  return max_losses > 1 and tonumber(job.losses) >= max_losses - 1
end

local function is_late(id) return (tonumber(job_of(id).deadline_ms) or math.huge) <= NOW end

local function answer(ids)
  if #ids == 0 then return {} end
  local reply, names = { int(NOW) }, {}
  for index, id in ipairs(ids) do
    local job = job_of(id)
    reply[2 * index] = table.concat({ id, job.fence, job.priority, job.due_ms, job.arrival_ms, job.deadline_ms or '-',
      job.losses, job.attempts, is_suspect(id) and '1' or '0', job.kind or '-', job.tenant }, ' ')
    names[index] = request_key(id)
  end
  for index, request in ipairs(redis.call('MGET', unpack(names))) do reply[2 * index + 1] = request or '' end
  return reply
end

-- The ids that a call of this name was answered before and that its leases still hold.
local function answered_before()
  local known = call ~= '' and redis.call('GET', claimed_key(worker, queue))
  if not known or string.match(known, '^%S+') ~= call then return end
  local ids = {}
  for id, fence in string.gmatch(known, '(%S+)/(%d+)') do
    if holds(id, fence) then ids[#ids + 1] = id end
  end
  return ids
end

-- Follow the 95th percentile of the waits: up a lot for one above it, down a little for one below (Robbins, Monro 1951).
-- Bulk work is meant to wait and says nothing.
local function note_wait(priority, arrival_ms)
  if LIMITS.target_wait_ms == 0 or priority == 'bulk' then return end
  local wait_ms, p95_ms = NOW - arrival_ms, tonumber(redis.call('HGET', load_key(queue), 'wait_p95_ms') or '0')
  local step_ms = math.max(p95_ms, LIMITS.target_wait_ms / 10) * 0.2
  p95_ms = math.max(0, p95_ms + step_ms * (wait_ms > p95_ms and 0.95 or -0.05))
  redis.call('HSET', load_key(queue), 'wait_p95_ms', p95_ms)
end

-- What a priority's line was last found to begin with: its head when that is overdue, false when not; unknown again when
-- the head is gone. And the priorities that were found empty: nothing becomes ready during a claim.
local heads, empty = {}, {}

local function overdue_head(priority)
  if heads[priority] == nil then
    local found = redis.call('ZRANGE', ready_key(queue, priority), 0, 0, 'WITHSCORES')
    while found[1] and not has_record(found[1]) do
      redis.call('ZREM', ready_key(queue, priority), found[1])
      found = redis.call('ZRANGE', ready_key(queue, priority), 0, 0, 'WITHSCORES')
    end
    local is_overdue = found[1] and tonumber(found[2]) < NOW
    heads[priority] = is_overdue and { id = found[1], due_ms = tonumber(found[2]) } or false
  end
  return heads[priority]
end

local function lease(id, priority)
  local job = job_of(id)
  note_wait(priority, tonumber(job.arrival_ms))
  charge(queue, priority, job.tenant, tonumber(job.cost) / tonumber(job.weight or '1'))
  take_ready(id, queue, priority, job.tenant)
  if heads[priority] and heads[priority].id == id then heads[priority] = nil end
  if job.deadline_ms then place(deadlines_key(queue), id) end
  job.fence, job.attempts = int(job.fence + 1), int(job.attempts + 1)
  redis.call('HSET', job_key(id), 'state', 'running', 'worker', worker, 'claimed_ms', int(NOW), 'fence', job.fence,
    'attempts', job.attempts, 'first_claim_ms', job.first_claim_ms or int(NOW))
  place(leases_key(queue), id, int(NOW + LIMITS.lease_ms))
  if is_listed(id, job.batch) then relist(id, job.tenant, 'queued', 'running', job.arrival_ms) end
  count(queue, 'claimed')
end

-- The worker that sees to suspects has to come again within a lease to stay it.
local function sees_to_suspects()
  local isolator = redis.call('HMGET', share_key(queue), 'isolator', 'isolator_until_ms')
  if isolator[1] and isolator[1] ~= worker and tonumber(isolator[2]) > NOW then return false end
  redis.call('HSET', share_key(queue), 'isolator', worker, 'isolator_until_ms', int(NOW + LIMITS.lease_ms))
  return true
end

-- How many tenants, and jobs of each, are looked through for one that is no suspect.
local MAX_PASSED_OVER = 64
local passes_over = false

local function first_of(priority, tenant)
  local line = tenant_ready_key(queue, priority, tenant)
  local id = redis.call('ZRANGE', line, 0, 0)[1]
  while id and not has_record(id) do
    take_ready(id, queue, priority, tenant)
    id = redis.call('ZRANGE', line, 0, 0)[1]
  end
  if not id then return end
  if not is_suspect(id) or (not passes_over and sees_to_suspects()) then return id end
  passes_over = true
  for _, other in ipairs(redis.call('ZRANGE', line, 1, MAX_PASSED_OVER)) do
    if has_record(other) and not is_suspect(other) then return other end
  end
end

local function first_ready()
  for level = 0, max_level do
    local priority = PRIORITIES[level + 1]
    for index = 0, empty[priority] and -1 or MAX_PASSED_OVER do
      local tenant = redis.call('ZRANGE', tenants_key(queue, priority), index, index, 'WITHSCORES')
      empty[priority] = index == 0 and not tenant[1]
      if not tenant[1] then break end
      local id = first_of(priority, tenant[1])
      if id then return id, priority, tenant[2] end
    end
  end
end

local function most_overdue()
  local found, found_priority
  for level = 0, max_level do
    local priority = PRIORITIES[level + 1]
    local head = overdue_head(priority)
    if head and not (passes_over and is_suspect(head.id)) and (not found or head.due_ms < found.due_ms) then
      found, found_priority = head, priority
    end
  end
  return found and found.id, found_priority
end

-- Choose the next job and account for it: its id and priority, nothing when none may be had.
local function choose(credit)
  local id, priority, service = first_ready()
  if not id then return nil, nil, credit end
  local late_id, late_priority = most_overdue()
  local cost = tonumber(job_of(id).cost)
  -- Credit is earned only while something is overdue; a claim of urgent work alone cannot tell.
  if not late_id then return id, priority, max_level == 2 and 0 or credit + cost, service end
  local price = tonumber(job_of(late_id).cost) * (OVERDUE_SHARE - 1)
  if credit >= price then return late_id, late_priority, credit - price end
  return id, priority, credit + cost, service
end

reap(queue, 64)
promote(queue, 256)
expire_late(queue, 64)

local known = answered_before()
if known then return answer(known) end
local ids, leased, is_blocked = {}, {}, false
local credit = tonumber(redis.call('HGET', share_key(queue), 'credit') or '0')
-- Work begins again: the window over which the speed is measured holds no idle time.
if redis.call('EXISTS', leases_key(queue)) == 0 then
  redis.call('HDEL', load_key(queue), 'window_ms', 'window_tokens')
end
while #ids < limit do
  local id, priority, credit_after, service = choose(credit)
  -- More may be late than one call ends. Those left must not be handed out; they are ended a call at a time.
  if id and is_late(id) and expire_late(queue, 64) > 0 then
    heads = {}
    id, priority, credit_after, service = choose(credit)
  end
  if not id or is_late(id) then break end
  local is_alone = is_suspect(id)
  is_blocked = is_alone and num_held + #ids > 0
  if is_blocked then break end
  if service then raise_level(queue, priority, service) end
  lease(id, priority)
  credit = credit_after
  ids[#ids + 1] = id
  leased[#leased + 1] = id .. '/' .. job_of(id).fence
  if is_alone then break end
end
if #ids > 0 then
  write_levels(queue)
  redis.call('HSET', share_key(queue), 'credit', int(credit))
  if call ~= '' then
    redis.call('SET', claimed_key(worker, queue), call .. ' ' .. table.concat(leased, ' '), 'PX', LIMITS.lease_ms)
  end
end
-- A worker that waits to be idle, or passed over all that is left, would answer its own ring, again and again.
local rings_in_vain = is_blocked or (passes_over and #ids < limit)
for _, priority in ipairs(rings_in_vain and {} or PRIORITIES) do
  if redis.call('EXISTS', ready_key(queue, priority)) == 1 then ring(queue, priority) end
end
return answer(ids)
