-- Part of every script: batches, their lines and their files.

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
