-- Part of every script: a job's ways into the queue and out of its line, the bells, and the room it holds.

local function push_token(bell)
  if is_first(bell) and redis.call('LLEN', bell) == 0 then redis.call('LPUSH', bell, '1') end
end

-- Each list holds one token at most, however many jobs came. Nobody waits for bulk work alone.
local function ring(queue, priority)
  push_token(bell_key(queue))
  if priority ~= 'bulk' then push_token(urgent_bell_key(queue, priority)) end
end

-- Lines whose tenant is known to be among those with something ready: asked for once a call.
local entered = {}
local function put_ready(id, queue, priority, tenant, due_ms, deadline_ms)
  local line = tenant_ready_key(queue, priority, tenant)
  place(ready_key(queue, priority), id, due_ms)
  place(line, id, due_ms)
  if deadline_ms then place(deadlines_key(queue), id, deadline_ms) end
  if not entered[line] then enter(queue, priority, tenant) end
  entered[line] = true
  ring(queue, priority)
end

-- Reads the lines: what was gathered for them has to be written before.
local function take_ready(id, queue, priority, tenant)
  local line = tenant_ready_key(queue, priority, tenant)
  redis.call('ZREM', ready_key(queue, priority), id)
  if redis.call('ZREM', line, id) == 1 and redis.call('EXISTS', line) == 0 then
    leave(queue, priority, tenant)
    entered[line] = nil
  end
end

local function num_queued(queue)
  local total = redis.call('ZCARD', later_key(queue))
  for _, priority in ipairs(PRIORITIES) do total = total + redis.call('ZCARD', ready_key(queue, priority)) end
  return total
end

-- How full the queue is, of jobs or of bytes, decides what it still admits. A level is left only some way below where
-- it was entered, so that a queue at the border does not flutter.
local LEVELS = { { at = 0.6, name = 'warn' }, { at = 0.8, name = 'bulk' }, { at = 0.95, name = 'standard' },
  { at = 1.0, name = 'full' } }
local HYSTERESIS = 0.05

-- Read once a call, then kept up as jobs are accepted.
local loads = {}
local function load_of(queue)
  if not loads[queue] then
    local load = redis.call('HMGET', load_key(queue), 'bytes', 'pressure')
    loads[queue] = { jobs = num_queued(queue), bytes = tonumber(load[1] or '0'), level = tonumber(load[2] or '0') }
  end
  return loads[queue]
end

local function fill_of(queue)
  local load = load_of(queue)
  return math.max(load.jobs / LIMITS.max_queued_jobs, load.bytes / LIMITS.max_queued_bytes)
end

local function pressure(queue)
  local load, fill, now = load_of(queue), fill_of(queue), 0
  for level, border in ipairs(LEVELS) do
    if fill >= border.at or (level <= load.level and fill > border.at - HYSTERESIS) then now = level end
  end
  if now ~= load.level then redis.call('HSET', load_key(queue), 'pressure', now) end
  load.level = now
  return now
end

-- Bytes that a live job keeps from others: its request, and room for its record and result.
local RECORD_BYTES = 2048
local BYTES_PER_TOKEN = 8
local VECTOR_BYTES = 22528 -- 4,096 numbers in base64
local function bytes_of(job)
  local bytes = #job.request + RECORD_BYTES + BYTES_PER_TOKEN * job.cost
  return job.kind == 'embed' and bytes + VECTOR_BYTES or bytes
end

-- With a sign of -1 it is given back.
local function hold_room(queue, priority, cost, bytes, sign)
  add(load_key(queue), 'bytes', sign * bytes)
  add(load_key(queue), 'cost:' .. priority, sign * cost)
end

-- Create a job's record and put it in its place. new: id queue priority tenant cost request kind? max_losses?
-- deadline_ms? not_before_ms? (both relative), fields? (of the record, a flat list for HSET)
local function put_job(new)
  local id, queue, priority, tenant = new.id, new.queue, new.priority, new.tenant
  local bytes, due_ms = bytes_of(new), NOW + LIMITS.patience_ms[priority]
  local deadline_ms = new.deadline_ms and NOW + new.deadline_ms
  if deadline_ms and deadline_ms < due_ms then due_ms = deadline_ms end
  local fields = new.fields or {}
  local function note(name, value)
    if value == nil then return end
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  note('deadline_ms', deadline_ms and int(deadline_ms))
  note('max_losses', new.max_losses)
  redis.call('HSET', job_key(id), 'queue', queue, 'priority', priority, 'tenant', tenant, 'state', 'queued',
    'arrival_ms', int(NOW), 'due_ms', int(due_ms), 'cost', int(new.cost), 'bytes', int(bytes), 'fence', '0',
    'losses', '0', 'attempts', '0', unpack(fields))
  put_text(request_key(id), new.request)
  if is_first(queue) then redis.call('SADD', queues_key(), queue) end
  hold_room(queue, priority, new.cost, bytes, 1)
  if (new.not_before_ms or 0) > 0 then
    place(later_key(queue), id, NOW + new.not_before_ms)
    if deadline_ms then place(deadlines_key(queue), id, deadline_ms) end
  else
    put_ready(id, queue, priority, tenant, due_ms, deadline_ms)
  end
  count(queue, 'submitted')
  account(tenant, queue, 'submitted', 1)
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
