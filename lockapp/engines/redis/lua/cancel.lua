#!lua flags=allow-oom
-- Give up waiting. If the lock has been handed over already, say so and leave it held.
-- Keys: 9, as in acquire.lua
-- Args: 7
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5 name        string
--   6 token       string
--   7 bury        integer 1: leave a tombstone, a request of this token may arrive late
-- Returns: GRANTED now_ms deadline_ms fence | GAVE_UP now_ms holder | GONE now_ms kind note
-- Time: server TIME.
-- Cost: O(holders + tombstones of the name), O(log waiters).
-- Since: Redis 7.0.
-- Invariant: afterwards the token does not wait; whether it holds is in the reply.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local lock = open_lock(ARGV[5], KEYS[7], KEYS[8], KEYS[9])
local token = ARGV[6]
local mine = lock.holders[token]
local waited = redis.call('ZSCORE', lock.queue, token)
leave(lock, token)
redis.call('DEL', KEYS[6] .. token) -- its grant may lie there already
if not mine and ARGV[7] == '1' and not lock.tombstones[token] then
  bury(lock, token, 'undone', '', tonumber(ARGV[4]))
end
hand_off(lock)
settle(lock)
if mine then
  return { 'GRANTED', now_ms, mine.deadline, tonumber(mine.fence) }
elseif waited then
  count('gave_up', lock.name)
  return { 'GAVE_UP', now_ms, foremost(lock) }
end
local tombstone = lock.tombstones[token] or { kind = '', note = '' }
return { 'GONE', now_ms, tombstone.kind, tombstone.note }
