-- Delete a job's record and texts, cancelling it first when it is live. allow-oom.
-- ARGV[3] id, ARGV[4] tenant
-- Reply: 1 erased, 0 unknown id or another tenant's
local id, tenant = ARGV[3], ARGV[4]
local job = redis.call('HMGET', job_key(id), 'state', 'tenant')
if not job[1] or job[2] ~= tenant then return 0 end
if not is_terminal(job[1]) then cancel(id) end
relist(id, tenant, redis.call('HGET', job_key(id), 'state'))
place(dead_key(), id)
redis.call('DEL', job_key(id), request_key(id), result_key(id), stream_key(id))
return 1
