#!lua flags=allow-oom
-- Take another fencing token for that of a lease: the second phase on one of several masters.
-- Keys: 2
--   1 lock        HASH    the lock
--   2 fence       STRING  last fencing token
-- Args: 2
--   1 token       string
--   2 fence       integer larger than the token's fence on each master that was counted
-- Returns: GRANTED now_ms deadline_ms fence | GONE now_ms kind note
-- Time: server TIME.
-- Cost: O(1).
-- Since: Redis 7.0.
-- Invariant: accepted only while the token holds, and by a grant with a smaller fence; every later
--   grant has a larger one.
-- include: _shared/clock.lua
local field = 'h:' .. ARGV[1]
local record = redis.call('HGET', KEYS[1], field)
if not record then
  return { 'GONE', now_ms, 'gone', '' }
end
local deadline, share, fence, rest = string.match(
  record, '^(%d+) (%d+ %d+ %d+) (%d+) (.*)$')
if tonumber(deadline) <= now_ms then
  return { 'GONE', now_ms, 'expired', '' }
end
-- Granted here anew since it was counted, and perhaps others in between, with fences up to that.
if tonumber(fence) >= tonumber(ARGV[2]) then
  return { 'GONE', now_ms, 'overtaken', '' }
end
local last = redis.call('GET', KEYS[2])
if not last or tonumber(last) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2])
end
redis.call('HSET', KEYS[1], field, deadline .. ' ' .. share .. ' ' .. ARGV[2] .. ' ' .. rest)
return { 'GRANTED', now_ms, tonumber(deadline), tonumber(ARGV[2]) }
