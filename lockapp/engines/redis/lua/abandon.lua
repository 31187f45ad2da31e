#!lua flags=allow-oom
-- End a lease whose holder is known to be dead, or cut it short, and refuse its renewals.
-- Keys: 9, as in acquire.lua
-- Args: 9
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5 name        string
--   6 token       string
--   7 grace_ms    integer 0: end it now; else it ends after this long at the latest
--   8 note        JSON    actor and reason
--   9 notice      string  prefix of the channels on which processes listen
-- Returns: RELEASED now_ms | NOT_HELD now_ms
-- Time: server TIME.
-- Cost: O(holders + tombstones of the name), O(log waiters) to hand off.
-- Since: Redis 7.0.
-- Invariant: a lease is only ever shortened, and is not renewed afterwards.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local lock = open_lock(ARGV[5], KEYS[7], KEYS[8], KEYS[9])
local token, grace_ms = ARGV[6], tonumber(ARGV[7])
local holder = lock.holders[token]
if holder then
  if grace_ms == 0 then
    drop_holder(lock, holder, 'abandoned', ARGV[8])
  else
    holder.deadline = math.min(holder.deadline, now_ms + grace_ms)
    write_holder(lock, holder)
  end
  bury(lock, token, 'abandoned', ARGV[8], math.max(tonumber(ARGV[4]), holder.ttl))
  redis.pcall('PUBLISH', ARGV[9] .. holder.process, lock.name)
end
hand_off(lock)
settle(lock)
return { holder and 'RELEASED' or 'NOT_HELD', now_ms }
