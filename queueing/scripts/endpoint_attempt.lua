-- Write down an attempt and what it says of its endpoint. allow-oom.
-- A repeat counts a failure twice at most, which only pauses the endpoint earlier.
-- ARGV[3] endpoint id, ARGV[4] delivery id, ARGV[5] JSON for ATTEMPTS without at_ms, ARGV[6] delivered, failed, given_up, tested
-- ARGV[7] reason to disable the endpoint at once, or '', ARGV[8] how long the endpoint asked for silence, in ms
-- Reply: 'ok', or 'disabled' when this attempt disabled it
local MAX_LISTED_ATTEMPTS = 20
-- From so many failures in a row on the endpoint rests after each: 10 s, doubling, 10 minutes at most.
local FAILURES_TO_PAUSE, FIRST_PAUSE_MS, MAX_PAUSE_MS = 5, 10000, 600000
-- A delivery given up while nothing has succeeded for so long disables the endpoint.
local PATIENCE_MS = 259200000

local key = endpoint_key(ARGV[3])
local attempt = cjson.decode(ARGV[5])
attempt.at_ms = NOW
redis.call('RPUSH', attempts_key(ARGV[4]), cjson.encode(attempt))
redis.call('LTRIM', attempts_key(ARGV[4]), -MAX_LISTED_ATTEMPTS, -1)
redis.call('PEXPIRE', attempts_key(ARGV[4]), LIMITS.record_ttl_ms)
if ARGV[6] == 'tested' or redis.call('EXISTS', key) == 0 then return 'ok' end

if ARGV[6] == 'delivered' then
  redis.call('HDEL', key, 'failures', 'failing_since_ms', 'paused_until_ms')
  return 'ok'
end
local failures = redis.call('HINCRBY', key, 'failures', 1)
redis.call('HSETNX', key, 'failing_since_ms', int(NOW))
local pause_ms = tonumber(ARGV[8])
if failures >= FAILURES_TO_PAUSE then
  pause_ms = math.max(pause_ms, math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ^ (failures - FAILURES_TO_PAUSE)))
end
if pause_ms > 0 then redis.call('HSET', key, 'paused_until_ms', int(NOW + pause_ms)) end

local reason = ARGV[7]
if ARGV[6] == 'given_up' and NOW - redis.call('HGET', key, 'failing_since_ms') >= PATIENCE_MS then
  reason = 'nothing was delivered for three days'
end
if reason == '' or redis.call('HEXISTS', key, 'disabled_ms') == 1 then return 'ok' end
unsubscribe(ARGV[3])
redis.call('HSET', key, 'disabled_ms', int(NOW), 'disabled_reason', reason)
redis.call('ZADD', disabled_endpoints_key(), int(NOW), ARGV[3])
return 'disabled'
