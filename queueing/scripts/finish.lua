-- End a leased job with its result, once. A job that is done after its deadline is expired, never completed. allow-oom.
-- ARGV[3] id, ARGV[4] fence, ARGV[5] state, ARGV[6] result JSON, ARGV[7] code or '', ARGV[8] stages JSON or ''
-- ARGV[9] stage of an expiry or ''
-- Reply: the state it ended in; 'stale' when the lease was not held
local id, state, result, code, stage = ARGV[3], ARGV[5], ARGV[6], ARGV[7], ARGV[9]
local queue = redis.call('HGET', job_key(id), 'queue')
if not holds(id, ARGV[4]) then
  if queue then count(queue, 'stale') end
  return 'stale'
end
local deadline_ms = tonumber(redis.call('HGET', job_key(id), 'deadline_ms') or 'inf')
if state == 'completed' and NOW > deadline_ms then
  state, result, code, stage = 'expired', '', 'deadline_exceeded', 'delivery'
end
if ARGV[8] ~= '' then redis.call('HSET', job_key(id), 'stages', ARGV[8]) end
end_job(id, state, result, code, 'the deadline passed before the result was delivered', stage)
return state
