-- Add pieces of text to the streams of the jobs they belong to, and tell who listens. Not allow-oom: the whole text is
-- in the result, so a full store does without.
-- ARGV[3] lifetime of a stream in ms, then ARGV[4..] id, fence, JSON of the piece (see token_stream.py), repeated
-- Reply: how many were added; a piece whose lease is not held is dropped
local told, ids = {}, {}
local num_added = 0
for index = 4, #ARGV, 3 do
  local id, fence, piece = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  if holds(id, fence) then
    redis.call('XADD', stream_key(id), '*', 'piece', piece)
    num_added = num_added + 1
    if not told[id] then
      redis.call('PEXPIRE', stream_key(id), ARGV[3])
      told[id] = true
      ids[#ids + 1] = id
    end
  end
end
if #ids > 0 then redis.call('PUBLISH', streamed_key(), table.concat(ids, ' ')) end
return num_added
