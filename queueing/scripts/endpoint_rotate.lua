-- Give an endpoint a new secret; the old one may go on signing beside it for a while. allow-oom.
-- ARGV[3] id, ARGV[4] tenant, ARGV[5] new secret, ARGV[6] how long the old one signs, in ms
-- Reply: 1; 0 for an unknown id or another tenant's
local endpoint = redis.call('HMGET', endpoint_key(ARGV[3]), 'tenant', 'secret')
if endpoint[1] ~= ARGV[4] then return 0 end
if endpoint[2] == ARGV[5] then return 1 end
redis.call('HSET', endpoint_key(ARGV[3]), 'secret', ARGV[5], 'updated_ms', int(NOW))
if tonumber(ARGV[6]) > 0 then
  redis.call('HSET', endpoint_key(ARGV[3]), 'old_secret', endpoint[2], 'old_secret_until_ms', int(NOW + ARGV[6]))
else
  redis.call('HDEL', endpoint_key(ARGV[3]), 'old_secret', 'old_secret_until_ms')
end
return 1
