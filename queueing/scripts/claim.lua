-- Lease up to `limit` jobs to a worker, most urgent first, after taking back what was lost and ending what is late.
-- allow-oom: a full store must drain.
-- ARGV[3] queue, ARGV[4] worker, ARGV[5] limit, ARGV[6] least urgent priority that may be claimed, 0 realtime .. 2
-- ARGV[7] how many claims the worker holds, ARGV[8] id of this call or '': a repeat of the last call gets its answer
-- Reply: list of {id, fence, request, priority, tenant, due_ms, arrival_ms, now_ms, deadline_ms or '', losses, attempts,
--   1 when it must run alone}
-- Order: the highest priority with work; in it the tenant with the least service; of that tenant the earliest due time.
-- One eighth of the service, in tokens, goes to whatever is most overdue in any priority.
-- A job that one more loss would make dead is suspected of killing its workers: it goes alone to a worker that holds
-- nothing. One worker at a time sees to them: when a suspect's turn has come it gets nothing more until it is idle. All
-- others pass suspects over and go on.
local queue, worker, limit, max_level = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local num_held, call = tonumber(ARGV[7]), ARGV[8]
local OVERDUE_SHARE = 8

local function is_suspect(id)
  local max_losses = max_losses_of(id)
  return max_losses > 1 and tonumber(redis.call('HGET', job_key(id), 'losses')) >= max_losses - 1
end

local function is_late(id)
  return tonumber(redis.call('HGET', job_key(id), 'deadline_ms') or 'inf') <= NOW
end

local function answer(id)
  local job = redis.call('HMGET', job_key(id), 'fence', 'priority', 'tenant', 'due_ms', 'arrival_ms', 'deadline_ms',
    'losses', 'attempts')
  return { id, job[1], redis.call('GET', request_key(id)) or '', job[2], job[3], job[4], job[5], int(NOW),
    job[6] or '', job[7], job[8], is_suspect(id) and '1' or '0' }
end

local function answered_before()
  local known = call ~= '' and redis.call('GET', claimed_key(worker, queue))
  if not known or string.match(known, '^%S+') ~= call then return end
  local claims = {}
  for id, fence in string.gmatch(known, '(%S+)/(%d+)') do
    if holds(id, fence) then claims[#claims + 1] = answer(id) end
  end
  return claims
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

local function lease(id, priority)
  local job = redis.call('HMGET', job_key(id), 'tenant', 'cost', 'weight', 'batch', 'arrival_ms')
  note_wait(priority, tonumber(job[5]))
  charge(queue, priority, job[1], tonumber(job[2]) / tonumber(job[3] or '1'))
  take_ready(id, queue, priority, job[1])
  redis.call('HINCRBY', job_key(id), 'fence', 1)
  redis.call('HINCRBY', job_key(id), 'attempts', 1)
  redis.call('HSET', job_key(id), 'state', 'running', 'worker', worker, 'claimed_ms', int(NOW))
  redis.call('HSETNX', job_key(id), 'first_claim_ms', int(NOW))
  redis.call('ZADD', leases_key(queue), int(NOW + LIMITS.lease_ms), id)
  if is_listed(id, job[4]) then relist(id, job[1], 'queued', 'running', job[5]) end
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
  local id = redis.call('ZRANGE', tenant_ready_key(queue, priority, tenant), 0, 0)[1]
  if not is_suspect(id) or (not passes_over and sees_to_suspects()) then return id end
  passes_over = true
  for _, other in ipairs(redis.call('ZRANGE', tenant_ready_key(queue, priority, tenant), 1, MAX_PASSED_OVER)) do
    if not is_suspect(other) then return other end
  end
end

local function first_ready()
  for level = 0, max_level do
    local priority = PRIORITIES[level + 1]
    for index = 0, MAX_PASSED_OVER do
      local tenant = redis.call('ZRANGE', tenants_key(queue, priority), index, index, 'WITHSCORES')
      if not tenant[1] then break end
      local id = first_of(priority, tenant[1])
      if id then return id, priority, tenant[2] end
    end
  end
end

local function most_overdue()
  local found_id, found_priority, found_due
  for level = 0, max_level do
    local priority = PRIORITIES[level + 1]
    local head = redis.call('ZRANGE', ready_key(queue, priority), 0, 0, 'WITHSCORES')
    local is_overdue = head[1] and tonumber(head[2]) < NOW and not (passes_over and is_suspect(head[1]))
    if is_overdue and (not found_due or tonumber(head[2]) < found_due) then
      found_id, found_priority, found_due = head[1], priority, tonumber(head[2])
    end
  end
  return found_id, found_priority
end

-- The level never falls, or a tenant that was given service back would take it with it.
local function raise_level(priority, service)
  if tonumber(service) <= level_of(queue, priority) then return end
  redis.call('HSET', share_key(queue), 'service:' .. priority, service)
  redis.call('ZREMRANGEBYSCORE', served_key(queue, priority), '-inf', service)
end

-- Choose the next job and account for it: its id and priority, nothing when none may be had.
local function choose(credit)
  local id, priority, service = first_ready()
  if not id then return nil, nil, credit end
  local late_id, late_priority = most_overdue()
  local cost = tonumber(redis.call('HGET', job_key(id), 'cost'))
  -- Credit is earned only while something is overdue; a claim of urgent work alone cannot tell.
  if not late_id then return id, priority, max_level == 2 and 0 or credit + cost, service end
  local late_cost = tonumber(redis.call('HGET', job_key(late_id), 'cost'))
  local price = late_cost * (OVERDUE_SHARE - 1)
  if credit >= price then return late_id, late_priority, credit - price end
  return id, priority, credit + cost, service
end

reap(queue, 64)
promote(queue, 256)
expire_late(queue, 64)

local claims = answered_before()
if claims then return claims end
claims = {}
local leased, is_blocked = {}, false
local credit = tonumber(redis.call('HGET', share_key(queue), 'credit') or '0')
-- Work begins again: the window over which the speed is measured holds no idle time.
if redis.call('EXISTS', leases_key(queue)) == 0 then
  redis.call('HDEL', load_key(queue), 'window_ms', 'window_tokens')
end
while #claims < limit do
  local id, priority, credit_after, service = choose(credit)
  -- More may be late than one call ends. Those left must not be handed out; they are ended a call at a time.
  if id and is_late(id) and expire_late(queue, 64) > 0 then id, priority, credit_after, service = choose(credit) end
  if not id or is_late(id) then break end
  local is_alone = is_suspect(id)
  is_blocked = is_alone and num_held + #claims > 0
  if is_blocked then break end
  if service then raise_level(priority, service) end
  lease(id, priority)
  credit = credit_after
  claims[#claims + 1] = answer(id)
  leased[#leased + 1] = id .. '/' .. claims[#claims][2]
  if is_alone then break end
end
if #claims > 0 then
  redis.call('HSET', share_key(queue), 'credit', int(credit))
  if call ~= '' then
    redis.call('SET', claimed_key(worker, queue), call .. ' ' .. table.concat(leased, ' '), 'PX', LIMITS.lease_ms)
  end
end
-- A worker that waits to be idle, or passed over all that is left, would answer its own ring, again and again.
local rings_in_vain = is_blocked or (passes_over and #claims < limit)
for _, priority in ipairs(rings_in_vain and {} or PRIORITIES) do
  if redis.call('EXISTS', ready_key(queue, priority)) == 1 then ring(queue, priority) end
end
return claims
