-- End a leased job with its result, once. A job that is done after its deadline is expired, never completed. allow-oom.
-- ARGV[3] id, ARGV[4] fence, ARGV[5] state, ARGV[6] result JSON, ARGV[7] code or '', ARGV[8] stages JSON or ''
-- ARGV[9] stage of an expiry or '', ARGV[10] tokens it really took or '' where they are not counted
-- Reply: the state it ended in, also to a repeat of the call that ended it; 'stale' when the lease was not held
local id, fence, state, result, code, stage = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[9]
local job = redis.call('HMGET', job_key(id), 'queue', 'state', 'finished_fence', 'deadline_ms', 'priority', 'tenant',
  'cost', 'weight')
local queue = job[1]

-- How fast the queue is served: the best of what windows of unbroken work showed, forgotten slowly; and how long one
-- job takes per token. Both feed the deadline check of enqueue.
local WINDOW_MS = 2000
local function note_speed(tokens)
  local key = load_key(queue)
  local load = redis.call('HMGET', key, 'window_ms', 'window_tokens', 'speed', 'pace')
  local begun_ms, done = tonumber(load[1] or int(NOW)), tonumber(load[2] or '0') + tokens
  if NOW - begun_ms >= WINDOW_MS then
    local speed, seen = tonumber(load[3] or '0'), done / (NOW - begun_ms)
    redis.call('HSET', key, 'speed', seen > speed and seen or speed * 0.95 + seen * 0.05)
    begun_ms, done = NOW, 0
  end
  redis.call('HSET', key, 'window_ms', int(begun_ms), 'window_tokens', int(done))
  if tokens > 0 then
    local pace = (NOW - tonumber(redis.call('HGET', job_key(id), 'claimed_ms'))) / tokens
    redis.call('HSET', key, 'pace', load[4] and tonumber(load[4]) * 0.9 + pace * 0.1 or pace)
  end
end

if job[3] == fence then return job[2] end
if not holds(id, fence) then
  if queue then count(queue, 'stale') end
  return 'stale'
end
if state == 'completed' and NOW > tonumber(job[4] or 'inf') then
  state, result, code, stage = 'expired', '', 'deadline_exceeded', 'delivery'
end
if ARGV[8] ~= '' then redis.call('HSET', job_key(id), 'stages', ARGV[8]) end
redis.call('HSET', job_key(id), 'finished_fence', fence)
if ARGV[10] ~= '' then
  -- The claim charged what the job was expected to take.
  charge(queue, job[5], job[6], (tonumber(ARGV[10]) - tonumber(job[7])) / tonumber(job[8] or '1'))
  account(job[6], queue, 'tokens', ARGV[10])
  note_speed(tonumber(ARGV[10]))
end
end_job(id, state, result, code, 'the deadline passed before the result was delivered', stage)
return state
