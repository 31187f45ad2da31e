#!lua
-- Grant several locks of one shard to one caller: all of them, or none.
-- Keys: 6 + three per lock
--   1 held, 2 fence, 3 events, 4 number, 5 counts, 6 grant:   as in acquire.lua
--   7… lock, queue, waiters
-- Args: 6 + six per lock
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms
--   5 process     string
--   6 description JSON
--   7… name, token, ttl_ms, limit, weight, max_hold_ms
-- Returns: GRANTED now_ms {deadline_ms, fence}… | BUSY now_ms holder position (of the first lock
--   that is not to be had, from 1)
-- Time: server TIME.
-- Cost: O(locks · (holders + tombstones)).
-- Since: Redis 7.0.
-- Invariant: as acquire.lua, for each; nothing is granted unless everything is.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local asked = {}
for i = 1, (#ARGV - 6) / 6 do
  local at = 7 + 3 * (i - 1)
  local lock = open_lock(ARGV[6 * i + 1], KEYS[at], KEYS[at + 1], KEYS[at + 2])
  hand_off(lock)
  asked[i] = {
    lock = lock, token = ARGV[6 * i + 2], ttl = ARGV[6 * i + 3], limit = ARGV[6 * i + 4],
    weight = ARGV[6 * i + 5], max_hold = ARGV[6 * i + 6],
  }
end

local function may_have(ask)
  local lock = ask.lock
  if lock.tombstones[ask.token] then
    return false
  end
  return lock.holders[ask.token]
    or (not lock.waiting and fits(lock, ask.weight, ask.limit))
end

for i, ask in ipairs(asked) do
  if not may_have(ask) then
    for _, other in ipairs(asked) do
      settle(other.lock)
    end
    count('contended', ask.lock.name)
    return { 'BUSY', now_ms, foremost(ask.lock), i }
  end
end

local reply = { 'GRANTED', now_ms }
for i, ask in ipairs(asked) do
  local lock, mine = ask.lock, ask.lock.holders[ask.token]
  if not mine then
    mine = {
      token = ask.token, ttl = ask.ttl, weight = ask.weight, limit = ask.limit,
      max_hold = ask.max_hold, process = ARGV[5], description = ARGV[6],
    }
    add_holder(lock, mine, 'held', tonumber(ask.ttl), 0)
  end
  settle(lock)
  reply[i + 2] = { mine.deadline, tonumber(mine.fence) }
end
return reply
