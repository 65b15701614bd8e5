-- Ask for a batch's end; its tick does the rest. allow-oom.
-- ARGV[3] id, ARGV[4] tenant
-- Reply: the status it has now; '' for an unknown id or another tenant's
local batch = redis.call('HMGET', batch_key(ARGV[3]), 'tenant', 'status')
if not batch[1] or batch[1] ~= ARGV[4] then return '' end
local status = batch[2]
if status == 'validating' or status == 'in_progress' or status == 'finalizing' then
  status = 'cancelling'
  redis.call('HSET', batch_key(ARGV[3]), 'status', status, 'cancelling_ms', int(NOW))
  hasten_tick(ARGV[3])
end
return status
