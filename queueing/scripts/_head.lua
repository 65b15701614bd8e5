-- Head of every script: the time, the limits, the records, and the writes that are gathered. Never run alone.
-- KEYS[1] prefix; ARGV[1] now in ms or '' for Redis TIME; ARGV[2] JSON of queue.py's QueueLimits.
-- A job is in exactly one place: ready (READY + TENANT_READY + TENANTS), LATER, LEASES, or ended.

local LIMITS = cjson.decode(ARGV[2])
local PRIORITIES = { 'realtime', 'standard', 'bulk' }

local function now_ms()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local NOW = now_ms()

local function int(number) return string.format('%.0f', number) end

-- True at the first call of this script for a thing, false at all others.
local done = {}
local function is_first(thing)
  if done[thing] then return false end
  done[thing] = true
  return true
end

-- The jobs of one call change the same counters and lists. What they change is gathered here and written with one
-- command a key: when the verb is done (see store.py), or before the verb reads it again.
local sums, places, ageing, texts = {}, {}, {}, {}

local function add(key, field, amount)
  local fields = sums[key] or {}
  fields[field] = (fields[field] or 0) + amount
  sums[key] = fields
end

-- Put a member of a sorted set in its place, or with a score of nil out of it; the last word on a member counts.
local function place(key, member, score)
  local members = places[key] or {}
  members[member] = score or false
  places[key] = members
end

-- Let a list forget what is older than records get. The whole list goes when nothing has come since.
local function forget_old(list) ageing[list] = true end

local function put_text(key, text)
  texts[#texts + 1] = key
  texts[#texts + 1] = text
end

-- Lua puts no more than some thousands of arguments on its stack.
local function call_with(command, key, arguments)
  for first = 1, #arguments, 2000 do
    redis.call(command, key, unpack(arguments, first, math.min(first + 1999, #arguments)))
  end
end

local function write_places(key, members)
  local coming, going = {}, {}
  for member, score in pairs(members) do
    if score then
      coming[#coming + 1] = score
      coming[#coming + 1] = member
    else
      going[#going + 1] = member
    end
  end
  call_with('ZADD', key, coming)
  call_with('ZREM', key, going)
end

local function write_gathered()
  for key, fields in pairs(sums) do
    for field, amount in pairs(fields) do redis.call('HINCRBY', key, field, int(amount)) end
  end
  for key, members in pairs(places) do write_places(key, members) end
  for list in pairs(ageing) do
    redis.call('ZREMRANGEBYSCORE', list, '-inf', int(NOW - LIMITS.record_ttl_ms))
    redis.call('PEXPIRE', list, LIMITS.record_ttl_ms)
  end
  for first = 1, #texts, 2000 do redis.call('MSET', unpack(texts, first, math.min(first + 1999, #texts))) end
  sums, places, ageing, texts = {}, {}, {}, {}
end

-- Read some fields of a job's record, by their names; what it does not have is nil.
local function read_job(id, names)
  local values, job = redis.call('HMGET', job_key(id), unpack(names)), { id = id }
  for index, name in ipairs(names) do job[name] = values[index] or nil end
  return job
end

-- True for the newest lease, while it is held. job: state, fence.
local function entitles(job, fence) return job.state == 'running' and job.fence == fence end

local function holds(id, fence) return entitles(read_job(id, { 'state', 'fence' }), fence) end
