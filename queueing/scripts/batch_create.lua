-- Accept a batch and queue its tick, once per idempotency key. Not allow-oom: a full store admits nothing.
-- ARGV[3] JSON: id tenant input_file endpoint completion_window window_ms window metadata? output_ttl_ms?
--   record_ttl_ms, and the fields of an idempotency key (see answered_already)
-- ARGV[4] progress JSON
-- Reply: {'created' | 'exists' | 'conflict' | 'full' | 'no_file' | 'wrong_purpose', id}
local batch = cjson.decode(ARGV[3])

local known_id, is_same = answered_already(batch)
if known_id then return { is_same and 'exists' or 'conflict', known_id } end
if redis.call('EXISTS', batch_key(batch.id)) == 1 then return { 'exists', batch.id } end
local file = redis.call('HMGET', file_key(batch.input_file), 'tenant', 'purpose', 'expires_ms')
if file[1] ~= batch.tenant or tonumber(file[3]) <= NOW then return { 'no_file', batch.id } end
if file[2] ~= 'batch' then return { 'wrong_purpose', batch.id } end
if num_queued('batches') >= LIMITS.max_queued_jobs then return { 'full', batch.id } end

redis.call('HINCRBY', file_key(batch.input_file), 'readers', 1)
redis.call('HSET', batch_key(batch.id), 'tenant', batch.tenant, 'status', 'validating', 'endpoint', batch.endpoint,
  'input_file', batch.input_file, 'completion_window', batch.completion_window, 'window', int(batch.window),
  'created_ms', int(NOW), 'expires_ms', int(NOW + batch.window_ms), 'progress', ARGV[4])
if batch.metadata then redis.call('HSET', batch_key(batch.id), 'metadata', batch.metadata) end
if batch.output_ttl_ms then redis.call('HSET', batch_key(batch.id), 'output_ttl_ms', int(batch.output_ttl_ms)) end
-- A day is left for the batch to settle after its window; an older entry's record is gone.
local index_ttl_ms = batch.window_ms + 86400000 + batch.record_ttl_ms
redis.call('ZADD', batches_key(batch.tenant), int(NOW), batch.id)
if redis.call('PTTL', batches_key(batch.tenant)) < index_ttl_ms then
  redis.call('PEXPIRE', batches_key(batch.tenant), int(index_ttl_ms))
end
put_job({ id = batch.id, queue = 'batches', priority = 'standard', tenant = batch.tenant, cost = 1, max_losses = 0,
  request = '' })
remember_answer(batch, batch.id)
return { 'created', batch.id }
