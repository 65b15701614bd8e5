-- Extend leases. allow-oom.
-- ARGV[3] queue; then pairs id, fence
-- Reply: list of the ids that are no longer held
local lost = {}
for i = 4, #ARGV, 2 do
  if holds(ARGV[i], ARGV[i + 1]) then
    place(leases_key(ARGV[3]), ARGV[i], int(NOW + LIMITS.lease_ms))
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
