-- End queued jobs whose deadline has passed. allow-oom.
-- ARGV[3] queue, ARGV[4] most to end
-- Reply: how many ended
return expire_late(ARGV[3], tonumber(ARGV[4]))
