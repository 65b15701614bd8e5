-- Lease up to `limit` jobs to a worker, most urgent first, after taking back what was lost and ending what is late.
-- allow-oom: a full store must drain.
-- ARGV[3] queue, ARGV[4] worker, ARGV[5] limit, ARGV[6] least urgent priority level that may be claimed (0 realtime .. 2)
-- Reply: list of {id, fence, request, priority, tenant, due_ms, arrival_ms, now_ms, deadline_ms or '', losses, attempts}
-- Order: the highest priority with work; in it the tenant with the least service; of that tenant the earliest due time.
-- One eighth of the service, in tokens, goes to whatever is most overdue in any priority (see take_overdue).
local queue, worker, limit, max_level = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local OVERDUE_SHARE = 8

reap(queue, 64)
promote(queue, 256)
expire_late(queue, 64)

local function lease(id, priority)
  local job = redis.call('HMGET', job_key(id), 'tenant', 'due_ms', 'arrival_ms', 'deadline_ms', 'losses', 'attempts',
    'cost', 'first_claim_ms')
  take_ready(id, queue, priority, job[1])
  local fence = redis.call('HINCRBY', job_key(id), 'fence', 1)
  local attempts = redis.call('HINCRBY', job_key(id), 'attempts', 1)
  redis.call('HSET', job_key(id), 'state', 'running', 'worker', worker, 'claimed_ms', int(NOW))
  if not job[8] then redis.call('HSET', job_key(id), 'first_claim_ms', int(NOW)) end
  redis.call('ZADD', leases_key(queue), int(NOW + LIMITS.lease_ms), id)
  count(queue, 'claimed')
  return tonumber(job[7]), { id, int(fence), redis.call('GET', request_key(id)) or '', priority, job[1], job[2],
    job[3], int(NOW), job[4] or '', job[5], int(attempts) }
end

local function first_ready()
  for level = 0, max_level do
    local priority = PRIORITIES[level + 1]
    local tenant = redis.call('ZRANGE', tenants_key(queue, priority), 0, 0, 'WITHSCORES')
    if tenant[1] then
      local id = redis.call('ZRANGE', tenant_ready_key(queue, priority, tenant[1]), 0, 0)[1]
      return id, priority, tenant[1], tonumber(tenant[2])
    end
  end
end

local function most_overdue()
  local found_id, found_priority, found_due
  for level = 0, max_level do
    local priority = PRIORITIES[level + 1]
    local head = redis.call('ZRANGE', ready_key(queue, priority), 0, 0, 'WITHSCORES')
    if head[1] and tonumber(head[2]) < NOW and (not found_due or tonumber(head[2]) < found_due) then
      found_id, found_priority, found_due = head[1], priority, tonumber(head[2])
    end
  end
  return found_id, found_priority
end

local credit = tonumber(redis.call('HGET', share_key(queue), 'credit') or '0')
local claims = {}
while #claims < limit do
  local id, priority, tenant, service = first_ready()
  if not id then break end
  local late_id, late_priority = most_overdue()
  if not late_id then credit = 0 end
  local late_cost = late_id and tonumber(redis.call('HGET', job_key(late_id), 'cost'))
  if late_id and credit >= late_cost * (OVERDUE_SHARE - 1) then
    local cost, claim = lease(late_id, late_priority)
    credit = credit - cost * (OVERDUE_SHARE - 1)
    claims[#claims + 1] = claim
  else
    redis.call('HSET', share_key(queue), 'service:' .. priority, int(service))
    local cost, claim = lease(id, priority)
    redis.call('ZADD', tenants_key(queue, priority), 'XX', 'INCR', cost, tenant)
    if late_id then credit = credit + cost end
    claims[#claims + 1] = claim
  end
end
redis.call('HSET', share_key(queue), 'credit', int(credit))
if first_ready() then ring(queue, redis.call('EXISTS', ready_key(queue, 'realtime')) == 1 and 'realtime' or 'standard') end
return claims
