-- Queue a sample event for one endpoint, ahead of others and for one attempt. Not allow-oom.
-- ARGV[3] endpoint id, ARGV[4] tenant, ARGV[5] delivery id, ARGV[6] event id, ARGV[7] event, ARGV[8] object id
-- Reply: 1; 0 for an unknown endpoint or another tenant's
if redis.call('HGET', endpoint_key(ARGV[3]), 'tenant') ~= ARGV[4] then return 0 end
local body = event_body(ARGV[6], ARGV[7], ARGV[8])
put_endpoint_delivery(ARGV[5], ARGV[4], 'realtime', ARGV[3], ARGV[7],
  { body = body, event_id = ARGV[6], is_test = true })
return 1
