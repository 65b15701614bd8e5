-- End a key for good; it is listed for another 30 days. allow-oom.
-- ARGV[3] id
-- Reply: 1, also to a repeat; 0 for an unknown id
local LISTED_MS = 30 * 86400000
if redis.call('EXISTS', api_key_key(ARGV[3])) == 0 then return 0 end
if redis.call('HSETNX', api_key_key(ARGV[3]), 'revoked_ms', int(NOW)) == 1 then
  redis.call('PEXPIRE', api_key_key(ARGV[3]), LISTED_MS)
end
return 1
