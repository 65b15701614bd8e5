-- End a batch: its files become known and its status final in one step. allow-oom.
-- ARGV[3] id, ARGV[4] fence, ARGV[5] progress JSON, ARGV[6] completed, expired or failed, ARGV[7] failure code or ''
-- ARGV[8] message, ARGV[9] record_ttl_ms, ARGV[10] JSON {output_file?, error_file?}, each a file for put_file
-- Reply: the status it ended in, also to a repeat of the call that ended it: ARGV[6], or cancelled when that was asked
-- for; 'stale' without the lease
local id = ARGV[3]
if redis.call('HGET', job_key(id), 'finished_fence') == ARGV[4] then return redis.call('HGET', batch_key(id), 'status') end
if not holds(id, ARGV[4]) then return 'stale' end
local batch = redis.call('HMGET', batch_key(id), 'tenant', 'status', 'input_file')
local status, code, message = ARGV[6], ARGV[7], ARGV[8]
if batch[2] == 'cancelling' then status, code, message = 'cancelled', 'cancelled', 'the batch was cancelled' end
for role, file in pairs(cjson.decode(ARGV[10])) do
  put_file(batch[1], file)
  redis.call('HSET', batch_key(id), role, file.id)
end
redis.call('HSET', batch_key(id), 'status', status, status .. '_ms', int(NOW), 'progress', ARGV[5])
redis.call('DEL', batch_live_key(id), batch_ended_key(id))
redis.call('PEXPIRE', batch_key(id), ARGV[9])
if redis.call('EXISTS', file_key(batch[3])) == 1 then redis.call('HINCRBY', file_key(batch[3]), 'readers', -1) end
local ending = { state = status, fields = { 'finished_fence', ARGV[4] } }
if code == '' then ending.result = '{"v":1,"state":"completed"}' else ending.code, ending.message = code, message end
end_job(read_job(id, ENDING), ending)
return status
