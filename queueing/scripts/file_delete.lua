-- Forget a file that no live batch reads; its bytes may be removed afterwards. allow-oom.
-- ARGV[3] id, ARGV[4] tenant or '' for any, ARGV[5] '1' to delete it only once its lifetime is over
-- Reply: 'deleted', 'in_use', or 'unknown' (also for another tenant's and one that still lives)
local file = redis.call('HMGET', file_key(ARGV[3]), 'tenant', 'readers', 'expires_ms')
-- To a tenant another's file costs no more and no less than one that does not exist.
if ARGV[4] ~= '' and file[1] ~= ARGV[4] then return 'unknown' end
if not file[1] then
  redis.call('ZREM', file_expiry_key(), ARGV[3])
  return 'unknown'
end
if ARGV[5] == '1' and tonumber(file[3]) > NOW then return 'unknown' end
if tonumber(file[2]) > 0 then return 'in_use' end
redis.call('DEL', file_key(ARGV[3]))
redis.call('ZREM', files_key(file[1]), ARGV[3])
redis.call('ZREM', file_expiry_key(), ARGV[3])
return 'deleted'
