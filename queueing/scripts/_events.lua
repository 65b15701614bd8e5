-- Part of every script: the events that ends are, and the deliveries that tell of them.

-- The event that an object's end is; nil for a line of a batch, for what is waited for, for a delivery itself.
local RESPONSE_EVENTS = { completed = 'completed', cancelled = 'cancelled', failed = 'failed', expired = 'failed',
  dead = 'failed' }
local function event_of(id, state, result, is_line)
  local kind = string.match(id, '^(%a+)_')
  if kind == 'batch' or (kind == 'job' and not is_line) then return kind .. '.' .. state end
  if kind ~= 'resp' then return nil end
  -- A text that spells this has its quotes escaped.
  local is_cut = string.find(result, '"finish_reason":"length"', 1, true)
  return 'response.' .. (state == 'completed' and is_cut and 'incomplete' or RESPONSE_EVENTS[state])
end

local function event_body(event_id, event, object_id)
  return '{"id":"' .. event_id .. '","object":"event","type":"' .. event .. '","created_at":' ..
    int(math.floor(NOW / 1000)) .. ',"data":{"id":"' .. object_id .. '"}}'
end

-- Queue one delivery (see outbox.py) unless it is queued already.
local function put_delivery(id, tenant, priority, delivery, fields)
  if redis.call('EXISTS', job_key(id)) == 1 then return end
  put_job({ id = id, queue = 'webhooks', priority = priority, tenant = tenant, cost = 1, max_losses = 0,
    request = cjson.encode(delivery), fields = fields })
end

-- The same to a registered endpoint, which lists what it was sent.
local MAX_LISTED_DELIVERIES = 1000
local function put_endpoint_delivery(id, tenant, priority, endpoint_id, event, delivery)
  delivery.endpoint_id = endpoint_id
  put_delivery(id, tenant, priority, delivery,
    { 'endpoint', endpoint_id, 'event', event, 'event_id', delivery.event_id })
  redis.call('ZADD', deliveries_key(endpoint_id), 'NX', int(NOW), id)
  redis.call('ZREMRANGEBYRANK', deliveries_key(endpoint_id), 0, -MAX_LISTED_DELIVERIES - 1)
end

-- An endpoint is in the sets of its events while it is enabled.
local function each_subscription(endpoint_id, command)
  local endpoint = redis.call('HMGET', endpoint_key(endpoint_id), 'tenant', 'event_types')
  for _, event in ipairs(cjson.decode(endpoint[2] or '[]')) do
    redis.call(command, subscribers_key(endpoint[1], event), endpoint_id)
  end
end

local function unsubscribe(endpoint_id) each_subscription(endpoint_id, 'SREM') end

local function subscribe(endpoint_id)
  if redis.call('HEXISTS', endpoint_key(endpoint_id), 'disabled_ms') == 0 then
    each_subscription(endpoint_id, 'SADD')
  end
end

local subscribers = {}
local function subscribers_of(tenant, event)
  local key = subscribers_key(tenant, event)
  subscribers[key] = subscribers[key] or redis.call('SMEMBERS', key)
  return subscribers[key]
end

-- Tell of an object's end: the receiver it named, and the tenant's endpoints that asked for such events. The ids follow
-- from the object's, so that a repeat can't make a second delivery.
local function put_events(object_id, tenant, url, event)
  local listeners = subscribers_of(tenant, event)
  if not url and #listeners == 0 then return end
  local event_id = 'evt_' .. string.match(object_id, '[-_](.+)$')
  local body = event_body(event_id, event, object_id)
  if url then
    put_delivery(event_id, tenant, 'standard', { url = url, tenant = tenant, body = body, event_id = event_id }, {})
  end
  for _, endpoint_id in ipairs(listeners) do
    local id = 'dlv_' .. string.sub(redis.sha1hex(event_id .. endpoint_id), 1, 22)
    put_endpoint_delivery(id, tenant, 'standard', endpoint_id, event, { body = body, event_id = event_id })
  end
end
