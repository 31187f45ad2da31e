#!lua flags=allow-oom
-- Ask the holder of a lease to let go, if the lease is still the one that was shown.
-- Keys: 9, as in acquire.lua
-- Args: 8
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5 name        string
--   6 fence       integer the lease whose holder is asked
--   7 note        JSON    actor and reason
--   8 notice      string  prefix of the channels on which processes listen
-- Returns: ASKED now_ms | CHANGED now_ms | NOT_HELD now_ms
-- Time: server TIME.
-- Cost: O(holders + tombstones of the name).
-- Since: Redis 7.0.
-- Invariant: nothing is taken away; the holder finds the request at its next renewal at the latest.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local lock = open_lock(ARGV[5], KEYS[7], KEYS[8], KEYS[9])
local status = next(lock.holders) and 'CHANGED' or 'NOT_HELD'
for token, holder in pairs(lock.holders) do
  if holder.fence == ARGV[6] then
    redis.call('HSET', lock.key, 'r:' .. token, ARGV[7])
    emit(lock.name, 'revoked', holder.fence, (now_ms - holder.granted) .. ' ' .. ARGV[7])
    redis.pcall('PUBLISH', ARGV[8] .. holder.process, lock.name)
    status = 'ASKED'
    break
  end
end
hand_off(lock)
settle(lock)
return { status, now_ms }
