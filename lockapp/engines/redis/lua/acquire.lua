#!lua
-- Grant a lock to a token, or queue the token, or say who holds the lock.
-- Keys: 9
--   1 held        ZSET    names by earliest deadline
--   2 fence       STRING  last fencing token
--   3 events      STREAM  audit log
--   4 number      STRING  last event number
--   5 counts      HASH    statistics
--   6 grant:      LIST    prefix of the inboxes
--   7 lock        HASH    the lock
--   8 queue       ZSET    waiters by ticket
--   9 waiters     HASH    waiters' records
-- Args: 13
--   1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms   policy, the same in every script
--   5 name        string
--   6 ttl_ms      integer
--   7 limit       integer what the holders' weights may add up to
--   8 weight      integer
--   9 seen_ms     integer how long a waiter counts as alive; 0: do not queue
--   10 max_hold_ms integer 0: no end
--   11 process    string  who waits and holds, for lapsed claims
--   12 token      string  chosen before the first request
--   13 description JSON   for people
-- Returns: GRANTED now_ms deadline_ms fence | QUEUED now_ms position next_deadline_ms
--   | BUSY now_ms holder | REFUSED now_ms kind note
-- Time: server TIME.
-- Cost: O(holders + tombstones of the name), O(log waiters) when queueing.
-- Since: Redis 7.0.
-- Invariant: weights of live holders never exceed the limit; nobody passes a live waiter; a token
--   that holds is answered with its own lease again; a buried token is never granted.
-- include: _shared/clock.lua
-- include: _shared/number.lua
-- include: _shared/events.lua
-- include: _shared/grant.lua
local flat = redis.call('HGETALL', KEYS[7])
local ttl, limit, weight, max_hold = ARGV[6], ARGV[7], ARGV[8], ARGV[10]
local process, token = ARGV[11], ARGV[12]
if not flat[1] then
  -- The common case, kept short: a lock without any record is free, and a free lock has no queue,
  -- since whatever freed it handed it on.
  local deadline = deadline_of(tonumber(ttl), max_hold)
  local fence = grant(ARGV[5], KEYS[7], token, deadline, ttl, weight, limit, max_hold,
    'held', process, '0', ARGV[13])
  index(ARGV[5], KEYS[7], deadline, deadline)
  return { 'GRANTED', now_ms, deadline, tonumber(fence) }
end
-- include: _shared/waiters.lua
-- include: _shared/lock.lua
-- include: _shared/handoff.lua
local lock = open_lock(ARGV[5], KEYS[7], KEYS[8], KEYS[9], flat)
local seen_ms = tonumber(ARGV[9])

if lock.tombstones[token] then
  local tombstone = lock.tombstones[token]
  hand_off(lock)
  settle(lock)
  return { 'REFUSED', now_ms, tombstone.kind, tombstone.note }
end

-- Note that this waiter lives, until seen_ms from now.
local function see(queued_ms)
  redis.call('HSET', lock.waiters, token, whole(now_ms + seen_ms) .. ' ' .. ttl .. ' ' .. weight
    .. ' ' .. limit .. ' ' .. max_hold .. ' ' .. queued_ms .. ' ' .. process .. ' ' .. ARGV[13])
end

local known = lock.waiting and read_waiter(lock, token)
if known and seen_ms > 0 then
  see(known.queued)
elseif known then
  leave(lock, token) -- who asks without waiting waits no more
end
hand_off(lock)

local mine = lock.holders[token]
if not mine and not lock.waiting and fits(lock, weight, limit) then
  mine = {
    token = token, ttl = ttl, weight = weight, limit = limit, max_hold = max_hold,
    process = process, description = ARGV[13],
  }
  add_holder(lock, mine, 'held', tonumber(ttl), '0')
elseif mine then
  -- Asked again: the reply was lost, or a claim is taken up. Never shortened, never past max_hold.
  local deadline = now_ms + mine.ttl
  if mine.max_hold ~= '0' then
    deadline = math.min(deadline, mine.granted + mine.max_hold)
  end
  mine.deadline = math.max(mine.deadline, deadline)
  mine.state = 'held'
  write_holder(lock, mine)
  redis.call('DEL', KEYS[6] .. token)
end
if mine then
  settle(lock)
  return { 'GRANTED', now_ms, mine.deadline, tonumber(mine.fence) }
end

if seen_ms == 0 then
  count('contended', lock.name)
  settle(lock)
  return { 'BUSY', now_ms, foremost(lock) }
end
local ticket = redis.call('HINCRBY', lock.key, 'q', 1)
if redis.call('ZADD', lock.queue, 'NX', ticket, token) == 1 then
  count('contended', lock.name)
end
if not known then
  see(ms_text)
end
local safe = now_ms + seen_ms + ARGV[1]
redis.call('PEXPIREAT', lock.queue, safe)
redis.call('PEXPIREAT', lock.waiters, safe)
return { 'QUEUED', now_ms, redis.call('ZRANK', lock.queue, token), settle(lock) }
