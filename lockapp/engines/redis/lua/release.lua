#!lua flags=allow-oom
-- End a token's lease (or its waiting) and hand the lock on.
-- Keys: 9, as in acquire.lua
-- Args: 8
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5 name        string
--   6 token       string
--   7 bury        integer 1: leave a tombstone, a request of this token may arrive late
--   8 why         string  for the event
-- Returns: RELEASED now_ms | GONE now_ms kind note
-- Time: server TIME.
-- Cost: O(holders + tombstones of the name), O(log waiters) to hand off.
-- Since: Redis 7.0.
-- Invariant: only what the token itself held is ended; a second call changes nothing.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
local flat = redis.call('HGETALL', KEYS[7])
local token = ARGV[6]
if #flat == 2 and flat[1] == 'h:' .. token and ARGV[7] == '0' then
  -- The common case, kept short: the only holder of a lock that nobody waits for.
  local deadline, fence, granted = string.match(
    flat[2], '^(%d+) %d+ %d+ %d+ (%d+) (%d+) %d+ held ')
  if deadline and tonumber(deadline) > now_ms then
    redis.call('DEL', KEYS[7])
    redis.call('ZREM', KEYS[1], ARGV[5])
    emit(ARGV[5], 'released', fence, (now_ms - granted) .. ' ' .. ARGV[8])
    return { 'RELEASED', now_ms }
  end
end
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local lock = open_lock(ARGV[5], KEYS[7], KEYS[8], KEYS[9], flat)
local reply
if lock.holders[token] then
  drop_holder(lock, lock.holders[token], 'released', ARGV[8])
  reply = { 'RELEASED', now_ms }
elseif lock.expired[token] then
  reply = { 'GONE', now_ms, 'expired', '' }
elseif lock.tombstones[token] then
  local tombstone = lock.tombstones[token]
  reply = { 'GONE', now_ms, tombstone.kind, tombstone.note }
elseif redis.call('ZSCORE', lock.queue, token) then
  leave(lock, token)
  reply = { 'RELEASED', now_ms }
else
  reply = { 'GONE', now_ms, '', '' }
end
if ARGV[7] == '1' and not lock.tombstones[token] then
  bury(lock, token, 'undone', '', tonumber(ARGV[4]))
end
hand_off(lock)
settle(lock)
return reply
