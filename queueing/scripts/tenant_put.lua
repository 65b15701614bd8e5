-- Make a tenant, or replace what it may do. Not allow-oom: a full store admits nothing.
-- ARGV[3] name, ARGV[4] policy JSON
-- Reply: 1
redis.call('HSETNX', tenant_key(ARGV[3]), 'created_ms', int(NOW))
redis.call('HSET', tenant_key(ARGV[3]), 'policy', ARGV[4])
redis.call('ZADD', tenant_names_key(), 'NX', int(NOW), ARGV[3])
return 1
