-- Hand a job back without counting a loss. Its tenant stays charged: what the work took is gone. allow-oom.
-- ARGV[3] id, ARGV[4] fence, ARGV[5] not before, ms from now, ARGV[6] new request payload or ''
-- Reply: 1 released, 0 the lease was not held
if not holds(ARGV[3], ARGV[4]) then return 0 end
if ARGV[6] ~= '' then redis.call('SET', request_key(ARGV[3]), ARGV[6]) end
requeue(ARGV[3], NOW + tonumber(ARGV[5]))
return 1
