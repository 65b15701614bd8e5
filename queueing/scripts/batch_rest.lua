-- Hand a tick back, to come again after a delay, or at once when something happened while it ran. allow-oom.
-- ARGV[3] id, ARGV[4] fence, ARGV[5] delay in ms, ARGV[6] status the tick saw, ARGV[7] last line it has sent
-- Reply: 1 released, 0 the lease was not held
local id = ARGV[3]
if not holds(id, ARGV[4]) then return 0 end
local delay_ms = tonumber(ARGV[5])
local moved = redis.call('HGET', batch_key(id), 'status') ~= ARGV[6]
if moved or has_harvest(id, redis.call('ZCOUNT', batch_ended_key(id), '-inf', ARGV[7])) then delay_ms = 0 end
requeue(id, NOW + delay_ms)
return 1
