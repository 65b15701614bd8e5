-- Forget an endpoint; what is queued for it is given up when its turn comes. allow-oom.
-- ARGV[3] id, ARGV[4] tenant
-- Reply: 1; 0 for an unknown id or another tenant's
if redis.call('HGET', endpoint_key(ARGV[3]), 'tenant') ~= ARGV[4] then return 0 end
unsubscribe(ARGV[3])
redis.call('ZREM', endpoints_key(ARGV[4]), ARGV[3])
redis.call('ZREM', disabled_endpoints_key(), ARGV[3])
redis.call('DEL', endpoint_key(ARGV[3]), deliveries_key(ARGV[3]))
return 1
