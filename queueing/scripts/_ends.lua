-- Part of every script: a job's way back into the queue, and its one way out of it.

local function is_terminal(state) return state ~= 'queued' and state ~= 'running' end

-- What a job's end has to know of it.
local ENDING = { 'queue', 'priority', 'tenant', 'state', 'cost', 'bytes', 'webhook', 'batch', 'line', 'custom_id',
  'silent' }

-- The one way into a terminal state. job: id and ENDING. ending: state, code?, message? (without a result they make
-- one), result? (JSON), stage?, fields? (of the record, a flat list for HSET)
local function end_job(job, ending)
  local id, queue, tenant, state = job.id, job.queue, job.tenant, ending.state
  if job.state == 'running' then
    place(leases_key(queue), id)
  else
    take_ready(id, queue, job.priority, tenant)
    place(deadlines_key(queue), id)
    place(later_key(queue), id)
  end
  hold_room(queue, job.priority, tonumber(job.cost), tonumber(job.bytes), -1)
  local result = ending.result
    or cjson.encode({ v = 1, state = state, error = { code = ending.code, message = ending.message } })
  local fields = ending.fields or {}
  for _, name in ipairs({ 'code', 'stage' }) do
    if ending[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = ending[name]
    end
  end
  redis.call('HSET', job_key(id), 'state', state, 'finished_ms', int(NOW), unpack(fields))
  -- A line's texts stay until its batch has written them.
  redis.call('SET', result_key(id), result, 'PX', job.batch and LIMITS.record_ttl_ms or LIMITS.result_ttl_ms)
  -- What was to be delivered can be sent again as long as its record is listed.
  redis.call('PEXPIRE', request_key(id), queue == 'webhooks' and LIMITS.record_ttl_ms or LIMITS.result_ttl_ms)
  redis.call('PEXPIRE', job_key(id), LIMITS.record_ttl_ms)
  count(queue, state)
  account(tenant, queue, state, 1)
  if is_listed(id, job.batch) then list_ended(id, tenant, job.state, state) end
  if state == 'dead' then list_dead(id) end
  if job.batch then note_batch_line(job.batch, id, job.line, job.custom_id, state) end
  local event = not job.silent and event_of(id, state, result, job.batch)
  if event then put_events(id, tenant, job.webhook, event) end
  redis.call('PUBLISH', ended_key(), id)
end

-- Hand a leased job back to the queue.
local RETURNING = { 'queue', 'priority', 'tenant', 'due_ms', 'deadline_ms', 'batch', 'arrival_ms' }
local function requeue(id, not_before_ms)
  local job = read_job(id, RETURNING)
  place(leases_key(job.queue), id)
  if is_listed(id, job.batch) then relist(id, job.tenant, 'running', 'queued', job.arrival_ms) end
  redis.call('HSET', job_key(id), 'state', 'queued')
  redis.call('HDEL', job_key(id), 'worker')
  if not_before_ms > NOW then
    place(later_key(job.queue), id, not_before_ms)
    if job.deadline_ms then place(deadlines_key(job.queue), id, job.deadline_ms) end
  else
    put_ready(id, job.queue, job.priority, job.tenant, job.due_ms, job.deadline_ms)
  end
end

-- 0 for a job that is never given up.
local function max_losses_of(job) return tonumber(job.max_losses or LIMITS.max_losses) end

local function lose(id, queue)
  local losses = redis.call('HINCRBY', job_key(id), 'losses', 1)
  local max_losses = max_losses_of(read_job(id, { 'max_losses' }))
  count(queue, 'lost')
  if max_losses > 0 and losses >= max_losses then
    local message = 'the job was lost with its worker ' .. losses .. ' times'
    end_job(read_job(id, ENDING), { state = 'dead', code = 'worker_lost', message = message })
  else
    requeue(id, NOW)
  end
end

-- Take back what outlived its lease, oldest first, `limit` at most. Returns how many.
local function reap(queue, limit)
  local ids = redis.call('ZRANGEBYSCORE', leases_key(queue), '-inf', int(NOW), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    if redis.call('EXISTS', job_key(id)) == 1 then
      lose(id, queue)
    else
      place(leases_key(queue), id)
    end
  end
  write_gathered()
  return #ids
end

-- End queued jobs whose deadline has passed, `limit` at most. Returns how many.
local function expire_late(queue, limit)
  local ids = redis.call('ZRANGEBYSCORE', deadlines_key(queue), '-inf', int(NOW), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    local job = read_job(id, ENDING)
    if job.state then
      end_job(job, { state = 'expired', code = 'deadline_exceeded', stage = 'queued',
        message = 'the deadline passed while the job was queued' })
    else
      place(deadlines_key(queue), id)
    end
  end
  write_gathered()
  return #ids
end

-- Make ready what had to wait until now, `limit` at most.
local function promote(queue, limit)
  local ids = redis.call('ZRANGEBYSCORE', later_key(queue), '-inf', int(NOW), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    local job = read_job(id, { 'priority', 'tenant', 'due_ms', 'deadline_ms' })
    place(later_key(queue), id)
    if job.tenant then put_ready(id, queue, job.priority, job.tenant, job.due_ms, job.deadline_ms) end
  end
  write_gathered()
  return #ids
end

-- End a job that is not terminal as cancelled; a worker that runs it is told through its inbox.
local function cancel(id)
  local job = read_job(id, ENDING)
  local worker = redis.call('HGET', job_key(id), 'worker')
  end_job(job, { state = 'cancelled', code = 'cancelled', message = 'the job was cancelled', stage = job.state })
  if worker then
    redis.call('RPUSH', inbox_key(worker), 'cancel ' .. id)
    redis.call('PEXPIRE', inbox_key(worker), 60000)
  end
end
