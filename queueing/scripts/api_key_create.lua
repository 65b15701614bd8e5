-- Keep a key of a tenant. Not allow-oom: a full store admits nothing.
-- ARGV[3] JSON: id tenant name hint digest
-- Reply: 1; 0 when there is no such tenant
local made = cjson.decode(ARGV[3])
if redis.call('EXISTS', tenant_key(made.tenant)) == 0 then return 0 end
redis.call('HSET', api_key_key(made.id), 'tenant', made.tenant, 'name', made.name, 'hint', made.hint,
  'digest', made.digest, 'created_ms', int(NOW))
redis.call('ZADD', api_keys_key(made.tenant), int(NOW), made.id)
return 1
