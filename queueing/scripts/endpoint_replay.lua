-- Send a delivery that ended once more, under its event's id, as a new delivery. Not allow-oom.
-- ARGV[3] endpoint id, ARGV[4] tenant, ARGV[5] id of the delivery, ARGV[6] id for the new one
-- Reply: 'ok'; 'unknown' for an id the endpoint does not list or no longer holds the text of; 'live' for one that has
-- not ended; 'replayed' for one that was replayed before
if redis.call('HGET', endpoint_key(ARGV[3]), 'tenant') ~= ARGV[4] then return 'unknown' end
local old = redis.call('HMGET', job_key(ARGV[5]), 'endpoint', 'state', 'event', 'replayed_as')
local request = redis.call('GET', request_key(ARGV[5]))
if old[1] ~= ARGV[3] or not request then return 'unknown' end
if not is_terminal(old[2]) then return 'live' end
if old[4] then return old[4] == ARGV[6] and 'ok' or 'replayed' end
redis.call('HSET', job_key(ARGV[5]), 'replayed_as', ARGV[6])
local sent = cjson.decode(request)
put_endpoint_delivery(ARGV[6], ARGV[4], 'standard', ARGV[3], old[3], { body = sent.body, event_id = sent.event_id })
return 'ok'
