#!lua flags=allow-oom
-- Record what ran without this server's locks while it could not be asked.
-- Keys: 5
--   1 held, 2 fence, 3 events, 4 number, 5 counts:   as in acquire.lua
-- Args: 4 + two per report
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5… name, detail: mode, at_ms, reason and description of who it was, separated by one space
-- Returns: 1
-- Time: server TIME, which is when it is recorded; detail says when it was.
-- Cost: O(reports).
-- Since: Redis 7.0.
-- Invariant: locks are left alone.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
for i = 5, #ARGV, 2 do
  emit(ARGV[i], 'degraded', 0, ARGV[i + 1])
end
return 1
