-- Part of every script: what a tenant is told of its jobs, and what it had of the service beside others.

local function count(queue, name) add(totals_key(queue), name, 1) end

-- What a tenant had of the service, for its own eyes: of prompt jobs alone.
local function account(tenant, queue, name, amount)
  if string.sub(queue, 1, 9) == 'generate.' then add(usage_key(tenant), name, amount) end
end

-- A tenant's lists of jobs by state hold what it submitted itself, not the lines of its batches. `from` and `to` are
-- states, nil for none; an ended job is forgotten with its record, when the next one ends.
local function is_listed(id, batch) return not batch and string.sub(id, 1, 4) == 'job_' end

local function relist(id, tenant, from, to, at_ms)
  if from then place(jobs_key(tenant, from), id) end
  if to then place(jobs_key(tenant, to), id, at_ms) end
end

local function list_ended(id, tenant, from, state)
  relist(id, tenant, from, state, int(NOW))
  forget_old(jobs_key(tenant, state))
end

local function list_dead(id)
  place(dead_key(), id, int(NOW))
  forget_old(dead_key())
end

-- Service received is compared as in start-time fair queueing (Goyal, Vin, Cheng 1996): the level of a priority is the
-- service of the tenant served last, and a tenant that comes back starts at the level or at what it left with,
-- whichever is more. So it does not profit from its absence, and cannot shed what it owes by leaving for a moment.
-- Read once a call for each priority of a queue; those that were raised are written by write_levels.
local levels, raised = {}, {}
local function level_of(queue, priority)
  local key = tenants_key(queue, priority)
  levels[key] = levels[key] or tonumber(redis.call('HGET', share_key(queue), 'service:' .. priority) or '0')
  return levels[key]
end

-- The level never falls, or a tenant that was given service back would take it with it.
local function raise_level(queue, priority, service)
  if tonumber(service) <= level_of(queue, priority) then return end
  levels[tenants_key(queue, priority)] = tonumber(service)
  raised[priority] = service
end

local function write_levels(queue)
  for priority, service in pairs(raised) do
    redis.call('HSET', share_key(queue), 'service:' .. priority, service)
    redis.call('ZREMRANGEBYSCORE', served_key(queue, priority), '-inf', service)
  end
end

local function enter(queue, priority, tenant)
  if redis.call('ZSCORE', tenants_key(queue, priority), tenant) then return end
  local owed = tonumber(redis.call('ZSCORE', served_key(queue, priority), tenant) or '0')
  redis.call('ZREM', served_key(queue, priority), tenant)
  redis.call('ZADD', tenants_key(queue, priority), math.max(level_of(queue, priority), owed), tenant)
end

-- With nobody left to compare with, all start again from nothing.
local function leave(queue, priority, tenant)
  local service = tonumber(redis.call('ZSCORE', tenants_key(queue, priority), tenant) or '0')
  redis.call('ZREM', tenants_key(queue, priority), tenant)
  if redis.call('EXISTS', tenants_key(queue, priority)) == 0 then
    redis.call('DEL', served_key(queue, priority))
    redis.call('HDEL', share_key(queue), 'service:' .. priority)
    levels[tenants_key(queue, priority)], raised[priority] = 0, nil
  elseif service > level_of(queue, priority) then
    redis.call('ZADD', served_key(queue, priority), service, tenant)
  end
end

-- Count service to a tenant, or with a negative number take some back.
local function charge(queue, priority, tenant, service)
  if not redis.call('ZADD', tenants_key(queue, priority), 'XX', 'INCR', service, tenant) then
    redis.call('ZADD', served_key(queue, priority), 'XX', 'INCR', service, tenant)
  end
end
