-- Delete a terminal job's record and texts. allow-oom.
-- ARGV[3] id, ARGV[4] tenant
-- Reply: 1 erased, 0 unknown id, another tenant's, or still live
local job = redis.call('HMGET', job_key(ARGV[3]), 'state', 'tenant')
if not job[1] or job[2] ~= ARGV[4] or not is_terminal(job[1]) then return 0 end
redis.call('DEL', job_key(ARGV[3]), request_key(ARGV[3]), result_key(ARGV[3]))
return 1
