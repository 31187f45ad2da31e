#!lua flags=allow-oom
-- Reclaim the expired holders of some names and hand those locks on.
-- Keys: 6 + three per name
--   1 held, 2 fence, 3 events, 4 number, 5 counts, 6 grant:   as in acquire.lua
--   7… lock, queue, waiters
-- Args: 4 + one per name
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5… name
-- Returns: now_ms, how many names were no longer held by the same holders
-- Time: server TIME.
-- Cost: O(names · (holders + tombstones)).
-- Since: Redis 7.0.
-- Invariant: a live lease is never touched.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local reclaimed = 0
for i = 5, #ARGV do
  local at = 7 + 3 * (i - 5)
  local lock = open_lock(ARGV[i], KEYS[at], KEYS[at + 1], KEYS[at + 2])
  hand_off(lock)
  lock.changed = true -- the index may be out of step, since it led here
  if not settle(lock) or next(lock.expired) then
    reclaimed = reclaimed + 1
  end
end
return { now_ms, reclaimed }
