-- Accept a job, or say why not. Not allow-oom: a full store admits nothing.
-- ARGV[3] JSON: id queue priority tenant cost patience_ms deadline_ms? (relative) not_before_ms (relative)
--   max_losses? webhook? metadata? validate_ms idempotency_key? digest? batch? line? custom_id? batch_fence?
-- ARGV[4] request payload
-- Reply: {'created' | 'exists' | 'conflict' | 'full' | 'stale', id}
local job = cjson.decode(ARGV[3])

if job.idempotency_key then
  local known = redis.call('GET', P .. job.idempotency_key)
  if known then
    local id, digest = string.match(known, '^(%S+) (%S+)$')
    if digest ~= job.digest then return { 'conflict', id } end
    return { 'exists', id }
  end
end
if redis.call('EXISTS', job_key(job.id)) == 1 then return { 'exists', job.id } end
if job.batch then
  if not holds(job.batch, job.batch_fence) then return { 'stale', job.id } end
end
if num_queued(job.queue) >= LIMITS.max_queued_jobs then
  return { 'full', job.id }
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
add('deadline_ms', deadline_ms)
add('max_losses', job.max_losses)
add('webhook', job.webhook)
add('metadata', job.metadata)
add('batch', job.batch)
add('line', job.line)
add('custom_id', job.custom_id)
put_job(job.id, job.queue, job.priority, job.tenant, ARGV[4], due_ms, NOW + job.not_before_ms, deadline_ms, fields)
if job.batch then redis.call('ZADD', batch_live_key(job.batch), int(job.line), job.id) end
if job.idempotency_key then
  redis.call('SET', P .. job.idempotency_key, job.id .. ' ' .. job.digest, 'PX', LIMITS.idempotency_ttl_ms)
end
return { 'created', job.id }
