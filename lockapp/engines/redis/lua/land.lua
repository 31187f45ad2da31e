#!lua flags=allow-oom
-- Tell everybody who waits for a flight that it has landed: one entry wakes them all.
-- Keys: 2
--   1 lock        HASH    the lock that the leader holds
--   2 flight      STREAM  what its followers block on
-- Args: 4
--   1 token       string  the leader's; empty: it is not compared
--   2 fence       integer of the leader's lease; the number of the flight
--   3 outcome     string  kept | passed | aborted
--   4 keep_ms     integer how long somebody may be late to hear of it
-- Returns: 1 told | 0 the token does not hold the lock, or a later flight has landed
-- Time: server TIME.
-- Cost: O(followers).
-- Since: Redis 7.0.
-- Invariant: only the holder announces a result; landings of one name have growing numbers.
-- include: _shared/clock.lua
if ARGV[1] ~= '' then
  local holder = redis.call('HGET', KEYS[1], 'h:' .. ARGV[1])
  if not holder or tonumber(string.match(holder, '^%d+')) <= now_ms then
    return 0
  end
end
-- Refused by the server when the number does not grow.
local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', 1, ARGV[2] .. '-1', 'outcome', ARGV[3])
if type(added) == 'table' and added.err then
  return 0
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 1
