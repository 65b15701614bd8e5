-- Take back jobs whose lease ran out and make ready what had to wait; the janitor's back-up of claim. allow-oom.
-- ARGV[3] queue, ARGV[4] most to take
-- Reply: how many were taken back
promote(ARGV[3], tonumber(ARGV[4]))
return reap(ARGV[3], tonumber(ARGV[4]))
