#!lua flags=allow-oom
-- Give part of a lease back: make the holder's weight smaller (a writer becomes a reader).
-- Keys: 9, as in acquire.lua
-- Args: 8
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5 name        string
--   6 token       string
--   7 weight      integer the new weight
--   8 ttl_ms      integer the lease is prolonged on the way
-- Returns: GRANTED now_ms deadline_ms fence | GONE now_ms kind note
-- Time: server TIME.
-- Cost: O(holders + tombstones of the name), O(log waiters) to hand off.
-- Since: Redis 7.0.
-- Invariant: nobody comes between: the holder never lets go; a weight never grows.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local lock = open_lock(ARGV[5], KEYS[7], KEYS[8], KEYS[9])
local token = ARGV[6]
local mine, tombstone = lock.holders[token], lock.tombstones[token]
local reply
if mine and not tombstone then
  local weight = tonumber(ARGV[7])
  if weight < tonumber(mine.weight) then
    lock.used = lock.used - mine.weight + weight
    mine.weight = weight
    emit(lock.name, 'downgraded', mine.fence, (now_ms - mine.granted) .. ' ' .. weight)
  end
  mine.state = 'held'
  local deadline = now_ms + math.min(tonumber(ARGV[8]), mine.ttl)
  if mine.max_hold ~= '0' then
    deadline = math.min(deadline, mine.granted + mine.max_hold)
  end
  mine.deadline = math.max(mine.deadline, deadline)
  write_holder(lock, mine)
  reply = { 'GRANTED', now_ms, mine.deadline, tonumber(mine.fence) }
elseif tombstone then
  reply = { 'GONE', now_ms, tombstone.kind, tombstone.note }
else
  reply = { 'GONE', now_ms, lock.expired[token] and 'expired' or '', '' }
end
hand_off(lock)
settle(lock)
return reply
