-- Take one request and its tokens out of a tenant's buckets, or nothing. Not allow-oom: a full store admits nothing.
-- A bucket holds 1.5 times a minute's rate and fills steadily. A request that costs more than the bucket holds waits for
-- a full one and leaves a debt, so that every job passes sooner or later. The day's tokens count from midnight UTC.
-- A line of a batch leaves a share of what a bucket and a day hold, as long as it is not too large for that itself. It is
-- counted once: its batch remembers the last line that was, and is asked for lines in their order.
-- ARGV[3] tenant, ARGV[4] JSON: requests_per_min? tokens_per_min? tokens_per_day?, ARGV[5] tokens
-- of a line also: ARGV[6] the share to leave, ARGV[7] batch, ARGV[8] line
-- Reply: {what is used up: '' | 'requests' | 'tokens' | 'day', ms until it is worth asking again,
--   the bucket nearest to its end: '' | 'requests' | 'tokens', its size, what is left, ms until it is full}
local tenant, limits, tokens = ARGV[3], cjson.decode(ARGV[4]), tonumber(ARGV[5])
local share, batch, line = tonumber(ARGV[6] or '0'), ARGV[7], tonumber(ARGV[8] or '0')
local key = buckets_key(tenant)
local BURST = 1.5
local DAY_MS = 86400000

local function bucket_of(name, per_min, cost)
  local kept = redis.call('HMGET', key, name .. ':level', name .. ':at_ms')
  local size, per_ms = math.max(1, per_min * BURST), per_min / 60000
  local level = kept[1] and tonumber(kept[1]) + math.max(0, NOW - tonumber(kept[2])) * per_ms or size
  local bucket = { name = name, size = size, per_ms = per_ms, level = math.min(size, level), cost = cost }
  bucket.missing = math.max(0, math.min(cost + share * size, size) - bucket.level)
  return bucket
end

-- The tick of a batch whose record is gone is about to find that out.
local counted = batch and redis.call('HMGET', batch_key(batch), 'status', 'counted_line')
if counted and (not counted[1] or tonumber(counted[2] or '0') >= line) then return { '', 0, '', 0, 0, 0 } end

local buckets = {}
if limits.requests_per_min then buckets[#buckets + 1] = bucket_of('requests', limits.requests_per_min, 1) end
if limits.tokens_per_min then buckets[#buckets + 1] = bucket_of('tokens', limits.tokens_per_min, tokens) end

local today = math.floor(NOW / DAY_MS)
local function day_tokens()
  local kept = redis.call('HMGET', key, 'day', 'day_tokens')
  return kept[1] == int(today) and tonumber(kept[2]) or 0
end

local used_up, wait_ms = '', 0
for _, bucket in ipairs(buckets) do
  local ms = math.ceil(bucket.missing / bucket.per_ms)
  if ms > wait_ms then used_up, wait_ms = bucket.name, ms end
end
local function is_day_over()
  local size = limits.tokens_per_day
  return day_tokens() + (batch and math.min(tokens + share * size, size) or tokens) > size
end
if limits.tokens_per_day and is_day_over() then
  used_up, wait_ms = 'day', (today + 1) * DAY_MS - NOW
end

if used_up == '' then
  for _, bucket in ipairs(buckets) do
    bucket.level = bucket.level - bucket.cost
    redis.call('HSET', key, bucket.name .. ':level', tostring(bucket.level), bucket.name .. ':at_ms', int(NOW))
  end
  if limits.tokens_per_day then
    redis.call('HSET', key, 'day_tokens', int(day_tokens() + tokens), 'day', int(today))
  end
  redis.call('PEXPIRE', key, 2 * DAY_MS)
  if batch then redis.call('HSET', batch_key(batch), 'counted_line', int(line)) end
end

local nearest = { name = '', size = 0, level = 0, per_ms = 1 }
for _, bucket in ipairs(buckets) do
  if nearest.name == '' or bucket.level / bucket.size < nearest.level / nearest.size then nearest = bucket end
end
return { used_up, int(wait_ms), nearest.name, int(math.floor(nearest.size)),
  int(math.max(0, math.floor(nearest.level))), int(math.ceil((nearest.size - nearest.level) / nearest.per_ms)) }
