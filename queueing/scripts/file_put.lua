-- Make an uploaded file known, once per idempotency key. Not allow-oom: a full store admits nothing.
-- ARGV[3] tenant, ARGV[4] JSON of put_file's file, ARGV[5] idempotency key without prefix or '', ARGV[6] body digest
-- Reply: {'created' | 'exists' | 'conflict', id}
local tenant, file, key = ARGV[3], cjson.decode(ARGV[4]), ARGV[5]
if key ~= '' then
  local known = redis.call('GET', P .. key)
  if known then
    local id, digest = string.match(known, '^(%S+) (%S+)$')
    return { digest == ARGV[6] and 'exists' or 'conflict', id }
  end
  redis.call('SET', P .. key, file.id .. ' ' .. ARGV[6], 'PX', LIMITS.idempotency_ttl_ms)
end
put_file(tenant, file)
return { 'created', file.id }
