-- End a job that is not terminal as cancelled; a worker that runs it is told through its inbox. allow-oom.
-- ARGV[3] id, ARGV[4] tenant
-- Reply: the state it is in afterwards; '' for an unknown id or another tenant's
local job = redis.call('HMGET', job_key(ARGV[3]), 'state', 'tenant')
if not job[1] or job[2] ~= ARGV[4] then return '' end
if is_terminal(job[1]) then return job[1] end
cancel(ARGV[3])
return 'cancelled'
