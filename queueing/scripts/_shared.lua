-- Head of every script: time, limits, the moves between places that all verbs share. Never run alone.
-- KEYS[1] prefix; ARGV[1] now in ms or '' for Redis TIME; ARGV[2] JSON of queue.py's QueueLimits.
-- A job is in exactly one place: ready (READY + TENANT_READY + TENANTS), LATER, LEASES, or ended.

local LIMITS = cjson.decode(ARGV[2])
local PRIORITIES = { 'realtime', 'standard', 'bulk' }

local function now_ms()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local NOW = now_ms()

local function int(number) return string.format('%.0f', number) end

local function count(queue, name) redis.call('HINCRBY', totals_key(queue), name, 1) end

-- What a tenant had of the service, for its own eyes: of prompt jobs alone.
local function account(tenant, queue, name, amount)
  if string.sub(queue, 1, 9) == 'generate.' then redis.call('HINCRBY', usage_key(tenant), name, amount) end
end

-- A tenant's lists of jobs by state hold what it submitted itself, not the lines of its batches. `from` and `to` are
-- states, nil for none; an ended job is forgotten with its record, when the next one ends.
local function is_listed(id, batch) return not batch and string.sub(id, 1, 4) == 'job_' end

local function relist(id, tenant, from, to, at_ms)
  if from then redis.call('ZREM', jobs_key(tenant, from), id) end
  if to then redis.call('ZADD', jobs_key(tenant, to), at_ms, id) end
end

-- As long as there are records: the whole list goes when none has ended since.
local function forget_old(list)
  redis.call('ZREMRANGEBYSCORE', list, '-inf', int(NOW - LIMITS.record_ttl_ms))
  redis.call('PEXPIRE', list, LIMITS.record_ttl_ms)
end

local function list_ended(id, tenant, from, state)
  relist(id, tenant, from, state, int(NOW))
  forget_old(jobs_key(tenant, state))
end

local function list_dead(id)
  redis.call('ZADD', dead_key(), int(NOW), id)
  forget_old(dead_key())
end

-- What was asked before under an idempotency key: its id, and whether the body was the same. asked: idempotency_key?
-- digest? begins? (an earlier request's key is taken over) idempotency_ttl_ms?
local function answered_already(asked)
  local known = asked.idempotency_key and not asked.begins and redis.call('GET', P .. asked.idempotency_key)
  if not known then return end
  local id, digest = string.match(known, '^(%S+) (%S+)$')
  return id, digest == asked.digest
end

local function remember_answer(asked, id)
  if not asked.idempotency_key then return end
  local ttl_ms = asked.idempotency_ttl_ms or LIMITS.idempotency_ttl_ms
  redis.call('SET', P .. asked.idempotency_key, id .. ' ' .. asked.digest, 'PX', int(ttl_ms))
end

local function push_token(bell)
  if redis.call('LLEN', bell) == 0 then redis.call('LPUSH', bell, '1') end
end

-- Each list holds one token at most, however many jobs came. Nobody waits for bulk work alone.
local function ring(queue, priority)
  push_token(bell_key(queue))
  if priority ~= 'bulk' then push_token(urgent_bell_key(queue, priority)) end
end

-- Service received is compared as in start-time fair queueing (Goyal, Vin, Cheng 1996): the level of a priority is the
-- service of the tenant served last, and a tenant that comes back starts at the level or at what it left with,
-- whichever is more. So it does not profit from its absence, and cannot shed what it owes by leaving for a moment.
local function level_of(queue, priority)
  return tonumber(redis.call('HGET', share_key(queue), 'service:' .. priority) or '0')
end

local function enter(queue, priority, tenant)
  if redis.call('ZSCORE', tenants_key(queue, priority), tenant) then return end
  local owed = tonumber(redis.call('ZSCORE', served_key(queue, priority), tenant) or '0')
  redis.call('ZREM', served_key(queue, priority), tenant)
  redis.call('ZADD', tenants_key(queue, priority), math.max(level_of(queue, priority), owed), tenant)
end

-- With nobody left to compare with, all start again from nothing.
local function leave(queue, priority, tenant)
  local service = tonumber(redis.call('ZSCORE', tenants_key(queue, priority), tenant) or '0')
  redis.call('ZREM', tenants_key(queue, priority), tenant)
  if redis.call('EXISTS', tenants_key(queue, priority)) == 0 then
    redis.call('DEL', served_key(queue, priority))
    redis.call('HDEL', share_key(queue), 'service:' .. priority)
  elseif service > level_of(queue, priority) then
    redis.call('ZADD', served_key(queue, priority), service, tenant)
  end
end

-- Count service to a tenant, or with a negative number take some back.
local function charge(queue, priority, tenant, service)
  if not redis.call('ZADD', tenants_key(queue, priority), 'XX', 'INCR', service, tenant) then
    redis.call('ZADD', served_key(queue, priority), 'XX', 'INCR', service, tenant)
  end
end

local function put_ready(id, queue, priority, tenant, due_ms, deadline_ms)
  redis.call('ZADD', ready_key(queue, priority), due_ms, id)
  redis.call('ZADD', tenant_ready_key(queue, priority, tenant), due_ms, id)
  enter(queue, priority, tenant)
  if deadline_ms then redis.call('ZADD', deadlines_key(queue), deadline_ms, id) end
  ring(queue, priority)
end

local function take_ready(id, queue, priority, tenant)
  redis.call('ZREM', ready_key(queue, priority), id)
  local was_ready = redis.call('ZREM', tenant_ready_key(queue, priority, tenant), id) == 1
  if was_ready and redis.call('EXISTS', tenant_ready_key(queue, priority, tenant)) == 0 then
    leave(queue, priority, tenant)
  end
  redis.call('ZREM', deadlines_key(queue), id)
end

local function num_queued(queue)
  local total = redis.call('ZCARD', later_key(queue))
  for _, priority in ipairs(PRIORITIES) do total = total + redis.call('ZCARD', ready_key(queue, priority)) end
  return total
end

local function is_terminal(state) return state ~= 'queued' and state ~= 'running' end

-- Bytes that a live job keeps from others: its request, and room for its record and result.
local RECORD_BYTES = 2048
local BYTES_PER_TOKEN = 8
local function hold_room(id, queue, request_bytes)
  local cost, priority = unpack(redis.call('HMGET', job_key(id), 'cost', 'priority'))
  local bytes = request_bytes + RECORD_BYTES + BYTES_PER_TOKEN * tonumber(cost)
  redis.call('HSET', job_key(id), 'bytes', int(bytes))
  redis.call('HINCRBY', load_key(queue), 'bytes', int(bytes))
  redis.call('HINCRBY', load_key(queue), 'cost:' .. priority, cost)
end

local function free_room(id, queue)
  local cost, priority, bytes = unpack(redis.call('HMGET', job_key(id), 'cost', 'priority', 'bytes'))
  redis.call('HINCRBY', load_key(queue), 'bytes', -tonumber(bytes or '0'))
  redis.call('HINCRBY', load_key(queue), 'cost:' .. priority, -tonumber(cost))
end

-- Create a job's record and put it in its place. fields: flat list for HSET.
local function put_job(id, queue, priority, tenant, request, due_ms, not_before_ms, deadline_ms, fields)
  redis.call('HSET', job_key(id), 'queue', queue, 'priority', priority, 'tenant', tenant, 'state', 'queued',
    'arrival_ms', int(NOW), 'due_ms', int(due_ms), 'fence', '0', 'losses', '0', 'attempts', '0', unpack(fields))
  redis.call('SET', request_key(id), request)
  redis.call('SADD', queues_key(), queue)
  hold_room(id, queue, #request)
  if not_before_ms > NOW then
    redis.call('ZADD', later_key(queue), not_before_ms, id)
    if deadline_ms then redis.call('ZADD', deadlines_key(queue), deadline_ms, id) end
  else
    put_ready(id, queue, priority, tenant, due_ms, deadline_ms)
  end
  count(queue, 'submitted')
  account(tenant, queue, 'submitted', 1)
end

-- The event that an object's end is; nil for a line of a batch, for what is waited for, for a delivery itself.
local RESPONSE_EVENTS = { completed = 'completed', cancelled = 'cancelled', failed = 'failed', expired = 'failed',
  dead = 'failed' }
local function event_of(id, state, result, is_line)
  local kind = string.match(id, '^(%a+)_')
  if kind == 'batch' or (kind == 'job' and not is_line) then return kind .. '.' .. state end
  if kind ~= 'resp' then return nil end
  -- A text that spells this has its quotes escaped.
  local is_cut = string.find(result, '"finish_reason":"length"', 1, true)
  return 'response.' .. (state == 'completed' and is_cut and 'incomplete' or RESPONSE_EVENTS[state])
end

local function event_body(event_id, event, object_id)
  return '{"id":"' .. event_id .. '","object":"event","type":"' .. event .. '","created_at":' ..
    int(math.floor(NOW / 1000)) .. ',"data":{"id":"' .. object_id .. '"}}'
end

-- Queue one delivery (see outbox.py) unless it is queued already.
local function put_delivery(id, tenant, priority, delivery, fields)
  if redis.call('EXISTS', job_key(id)) == 1 then return end
  put_job(id, 'webhooks', priority, tenant, cjson.encode(delivery), NOW + LIMITS.patience_ms[priority], NOW, nil,
    { 'cost', '1', 'max_losses', '0', unpack(fields) })
end

-- The same to a registered endpoint, which lists what it was sent.
local MAX_LISTED_DELIVERIES = 1000
local function put_endpoint_delivery(id, tenant, priority, endpoint_id, event, delivery)
  delivery.endpoint_id = endpoint_id
  put_delivery(id, tenant, priority, delivery,
    { 'endpoint', endpoint_id, 'event', event, 'event_id', delivery.event_id })
  redis.call('ZADD', deliveries_key(endpoint_id), 'NX', int(NOW), id)
  redis.call('ZREMRANGEBYRANK', deliveries_key(endpoint_id), 0, -MAX_LISTED_DELIVERIES - 1)
end

-- An endpoint is in the sets of its events while it is enabled.
local function each_subscription(endpoint_id, command)
  local endpoint = redis.call('HMGET', endpoint_key(endpoint_id), 'tenant', 'event_types')
  for _, event in ipairs(cjson.decode(endpoint[2] or '[]')) do
    redis.call(command, subscribers_key(endpoint[1], event), endpoint_id)
  end
end

local function unsubscribe(endpoint_id) each_subscription(endpoint_id, 'SREM') end

local function subscribe(endpoint_id)
  if redis.call('HEXISTS', endpoint_key(endpoint_id), 'disabled_ms') == 0 then
    each_subscription(endpoint_id, 'SADD')
  end
end

-- Tell of an object's end: the receiver it named, and the tenant's endpoints that asked for such events. The ids follow
-- from the object's, so that a repeat can't make a second delivery.
local function put_events(object_id, tenant, url, event)
  local event_id = 'evt_' .. string.match(object_id, '[-_](.+)$')
  local body = event_body(event_id, event, object_id)
  if url then
    put_delivery(event_id, tenant, 'standard', { url = url, tenant = tenant, body = body, event_id = event_id }, {})
  end
  for _, endpoint_id in ipairs(redis.call('SMEMBERS', subscribers_key(tenant, event))) do
    local id = 'dlv_' .. string.sub(redis.sha1hex(event_id .. endpoint_id), 1, 22)
    put_endpoint_delivery(id, tenant, 'standard', endpoint_id, event, { body = body, event_id = event_id })
  end
end

-- Let a batch's tick be claimed now instead of later; a tick that runs looks again before it rests.
local function hasten_tick(batch_id)
  if redis.call('ZSCORE', later_key('batches'), batch_id) then
    redis.call('ZADD', later_key('batches'), 'LT', NOW, batch_id)
    ring('batches', 'standard')
  end
end

-- Enough to write for a tick: a quarter of the window, or all there will be.
local function has_harvest(batch_id, num_ended)
  local window = tonumber(redis.call('HGET', batch_key(batch_id), 'window') or '1')
  return num_ended > 0 and (num_ended >= window / 4 or redis.call('EXISTS', batch_live_key(batch_id)) == 0)
end

-- Tell the batch that one of its lines ended.
local function note_batch_line(batch_id, id, line, custom_id, state)
  redis.call('ZREM', batch_live_key(batch_id), id)
  redis.call('ZADD', batch_ended_key(batch_id), line,
    cjson.encode({ job_id = id, line = tonumber(line), custom_id = custom_id, state = state }))
  if has_harvest(batch_id, redis.call('ZCARD', batch_ended_key(batch_id))) then hasten_tick(batch_id) end
end

-- Make a file known whose bytes are in place. file: id purpose filename bytes sha256 status note? ttl_ms
local function put_file(tenant, file)
  local expires_ms = NOW + file.ttl_ms
  redis.call('HSET', file_key(file.id), 'tenant', tenant, 'purpose', file.purpose, 'filename', file.filename,
    'bytes', int(file.bytes), 'sha256', file.sha256, 'status', file.status, 'created_ms', int(NOW),
    'expires_ms', int(expires_ms), 'readers', '0')
  if file.note then redis.call('HSET', file_key(file.id), 'note', file.note) end
  redis.call('ZADD', files_key(tenant), int(NOW), file.id)
  redis.call('ZADD', file_expiry_key(), int(expires_ms), file.id)
end

-- The one way into a terminal state. result: JSON or '' (then code and message make one). Returns nothing.
local function end_job(id, state, result, code, message, stage)
  local job = redis.call('HMGET', job_key(id), 'queue', 'priority', 'tenant', 'state', 'webhook', 'batch', 'line',
    'custom_id', 'silent')
  local queue, priority, tenant = job[1], job[2], job[3]
  if job[4] == 'running' then
    redis.call('ZREM', leases_key(queue), id)
  else
    take_ready(id, queue, priority, tenant)
    redis.call('ZREM', later_key(queue), id)
  end
  free_room(id, queue)
  if result == '' then
    result = cjson.encode({ v = 1, state = state, error = { code = code, message = message } })
  end
  redis.call('HSET', job_key(id), 'state', state, 'finished_ms', int(NOW))
  if code ~= '' then redis.call('HSET', job_key(id), 'code', code) end
  if stage ~= '' then redis.call('HSET', job_key(id), 'stage', stage) end
  redis.call('SET', result_key(id), result, 'PX', LIMITS.result_ttl_ms)
  -- What was to be delivered can be sent again as long as its record is listed.
  local request_ttl_ms = queue == 'webhooks' and LIMITS.record_ttl_ms or LIMITS.result_ttl_ms
  redis.call('PEXPIRE', request_key(id), request_ttl_ms)
  redis.call('PEXPIRE', job_key(id), LIMITS.record_ttl_ms)
  count(queue, state)
  account(tenant, queue, state, 1)
  if is_listed(id, job[6]) then list_ended(id, tenant, job[4], state) end
  if state == 'dead' then list_dead(id) end
  if job[6] then
    -- A line's texts stay until its batch has written them.
    redis.call('PEXPIRE', result_key(id), LIMITS.record_ttl_ms)
    note_batch_line(job[6], id, job[7], job[8], state)
  end
  local event = not job[9] and event_of(id, state, result, job[6])
  if event then put_events(id, tenant, job[5], event) end
  redis.call('PUBLISH', ended_key(), id)
end

-- Hand a leased job back to the queue.
local function requeue(id, queue, not_before_ms)
  local job = redis.call('HMGET', job_key(id), 'priority', 'tenant', 'due_ms', 'deadline_ms', 'batch', 'arrival_ms')
  redis.call('ZREM', leases_key(queue), id)
  if is_listed(id, job[5]) then relist(id, job[2], 'running', 'queued', job[6]) end
  redis.call('HSET', job_key(id), 'state', 'queued')
  redis.call('HDEL', job_key(id), 'worker')
  if not_before_ms > NOW then
    redis.call('ZADD', later_key(queue), not_before_ms, id)
    if job[4] then redis.call('ZADD', deadlines_key(queue), job[4], id) end
  else
    put_ready(id, queue, job[1], job[2], job[3], job[4])
  end
end

-- 0 for a job that is never given up.
local function max_losses_of(id)
  return tonumber(redis.call('HGET', job_key(id), 'max_losses') or LIMITS.max_losses)
end

-- Take back what outlived its lease, oldest first, `limit` at most. Returns how many.
local function reap(queue, limit)
  local ids = redis.call('ZRANGEBYSCORE', leases_key(queue), '-inf', int(NOW), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    local losses = redis.call('HINCRBY', job_key(id), 'losses', 1)
    local max_losses = max_losses_of(id)
    count(queue, 'lost')
    if max_losses > 0 and losses >= max_losses then
      end_job(id, 'dead', '', 'worker_lost', 'the job was lost with its worker ' .. losses .. ' times', '')
    else
      requeue(id, queue, NOW)
    end
  end
  return #ids
end

-- End queued jobs whose deadline has passed, `limit` at most. Returns how many.
local function expire_late(queue, limit)
  local ids = redis.call('ZRANGEBYSCORE', deadlines_key(queue), '-inf', int(NOW), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    end_job(id, 'expired', '', 'deadline_exceeded', 'the deadline passed while the job was queued', 'queued')
  end
  return #ids
end

-- Make ready what had to wait until now, `limit` at most.
local function promote(queue, limit)
  local ids = redis.call('ZRANGEBYSCORE', later_key(queue), '-inf', int(NOW), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    redis.call('ZREM', later_key(queue), id)
    local job = redis.call('HMGET', job_key(id), 'priority', 'tenant', 'due_ms', 'deadline_ms')
    put_ready(id, queue, job[1], job[2], job[3], job[4])
  end
  return #ids
end

-- True when the caller's lease is the newest and still held.
local function holds(id, fence)
  local job = redis.call('HMGET', job_key(id), 'state', 'fence')
  return job[1] == 'running' and job[2] == fence
end

-- End a job that is not terminal as cancelled; a worker that runs it is told through its inbox.
local function cancel(id, state, worker)
  end_job(id, 'cancelled', '', 'cancelled', 'the job was cancelled', state)
  if worker then
    redis.call('RPUSH', inbox_key(worker), 'cancel ' .. id)
    redis.call('PEXPIRE', inbox_key(worker), 60000)
  end
end
