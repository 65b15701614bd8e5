-- Register an endpoint, or change what is given of one. Not allow-oom: a full store admits nothing.
-- ARGV[3] JSON: id tenant is_new max_endpoints name? url? event_types? secret? is_enabled?
-- Reply: 'ok'; 'full' when the tenant has max_endpoints; 'unknown' for an unknown id or another tenant's
local put = cjson.decode(ARGV[3])
local key = endpoint_key(put.id)

if put.is_new then
  -- A repeat of the call finds its own endpoint and changes nothing.
  if redis.call('EXISTS', key) == 0 then
    if redis.call('ZCARD', endpoints_key(put.tenant)) >= put.max_endpoints then return 'full' end
    redis.call('HSET', key, 'tenant', put.tenant, 'created_ms', int(NOW))
    redis.call('ZADD', endpoints_key(put.tenant), int(NOW), put.id)
  end
elseif redis.call('HGET', key, 'tenant') ~= put.tenant then
  return 'unknown'
end

unsubscribe(put.id)
local is_changed = false
local function set(name, value)
  if value ~= nil and redis.call('HGET', key, name) ~= value then
    redis.call('HSET', key, name, value)
    is_changed = true
  end
end
set('name', put.name)
set('url', put.url)
set('event_types', put.event_types)
set('secret', put.secret)
if put.is_enabled == false then
  if redis.call('HEXISTS', key, 'disabled_ms') == 0 then
    redis.call('HSET', key, 'disabled_ms', int(NOW), 'disabled_reason', 'disabled by its owner')
    is_changed = true
  end
elseif put.is_enabled == true and redis.call('HEXISTS', key, 'disabled_ms') == 1 then
  redis.call('HDEL', key, 'disabled_ms', 'disabled_reason', 'failures', 'failing_since_ms', 'paused_until_ms')
  redis.call('ZREM', disabled_endpoints_key(), put.id)
  is_changed = true
end
subscribe(put.id)
if is_changed then redis.call('HSET', key, 'updated_ms', int(NOW)) end
return 'ok'
