-- Record what a tick has done: its progress, and that the lines it wrote to segments need nothing else any more. allow-oom.
-- The values are absolute, so that a repeated call changes nothing.
-- ARGV[3] id, ARGV[4] fence, ARGV[5] progress JSON, ARGV[6] status to leave or '', ARGV[7] status to enter
-- ARGV[8..] members of BATCH_ENDED that are in a segment now
-- Reply: the status it has now (another than ARGV[7] when somebody cancelled it meanwhile); 'stale' without the lease
local id = ARGV[3]
if not holds(id, ARGV[4]) then return 'stale' end
redis.call('HSET', batch_key(id), 'progress', ARGV[5])
local status = redis.call('HGET', batch_key(id), 'status')
if status == ARGV[6] then
  status = ARGV[7]
  redis.call('HSET', batch_key(id), 'status', status, status .. '_ms', int(NOW))
end
for i = 8, #ARGV do
  local job_id = cjson.decode(ARGV[i]).job_id
  redis.call('ZREM', batch_ended_key(id), ARGV[i])
  redis.call('DEL', job_key(job_id), request_key(job_id), result_key(job_id))
end
return status
