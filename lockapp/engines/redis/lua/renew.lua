#!lua flags=allow-oom
-- Prolong many leases of one shard; say which other leases have run out.
-- Keys: 1 + one lock per lease
--   1 held        ZSET    names by earliest deadline
--   2… lock       HASH    one per lease
-- Args: 2 + three per lease
--   1 safety_ms   integer
--   2 sweep       integer how many expired names to report
--   3… name, token, ttl_ms
-- Returns: now_ms, then {deadline_ms, kind, note} per lease (deadline 0: ended, kind says how;
--   else kind is `revoked` when its holder is asked to let go),
--   then {expired names}
-- Time: server TIME.
-- Cost: O(leases · log names).
-- Since: Redis 7.0.
-- Invariant: prolongs only what the token holds and has not run out; never creates, never
--   shortens, never past max_hold.
-- include: _shared/clock.lua
local safety_ms = tonumber(ARGV[1])
local results = {}

-- The index needs the earliest deadline of all holders; most often this is the only one.
local function earliest(key, field, deadline)
  if redis.call('HLEN', key) > 1 then
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do
      if string.sub(flat[i], 1, 2) == 'h:' and flat[i] ~= field then
        deadline = math.min(deadline, tonumber(string.match(flat[i + 1], '^%d+')))
      end
    end
  end
  return deadline
end

local function renew(key, name, token, ttl_ms)
  local field = 'h:' .. token
  local record = redis.call('HMGET', key, field, 't:' .. token, 'r:' .. token)
  if record[2] then
    local kind, note = string.match(record[2], '^%d+ (%a+) (.*)$')
    return { 0, kind, note }
  elseif not record[1] then
    return { 0, 'gone', '' }
  end
  local old, ttl, share, granted, max_hold, who = string.match(
    record[1], '^(%d+) (%d+) (%d+ %d+ %d+) (%d+) (%d+) %a+ (.*)$')
  if tonumber(old) <= now_ms then
    return { 0, 'expired', '' }
  end
  local deadline = now_ms + math.min(ttl_ms, tonumber(ttl))
  if tonumber(max_hold) > 0 then
    deadline = math.min(deadline, granted + max_hold)
  end
  -- Never shortened; but a deadline beyond the ttl is a clock set back, and is clamped.
  deadline = math.max(deadline, math.min(tonumber(old), now_ms + tonumber(ttl)))
  redis.call('HSET', key, field, string.format('%.0f %s %s %s %s held %s',
    deadline, ttl, share, granted, max_hold, who))
  redis.call('PEXPIREAT', key, deadline + safety_ms, 'GT')
  redis.call('ZADD', KEYS[1], earliest(key, field, deadline), name)
  if record[3] then
    return { deadline, 'revoked', record[3] }
  end
  return { deadline, '', '' }
end

for i = 2, #KEYS do
  local at = 3 * (i - 1)
  results[i - 1] = renew(KEYS[i], ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]))
end
local expired = {}
if tonumber(ARGV[2]) > 0 then
  expired = redis.call('ZRANGE', KEYS[1], '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, ARGV[2])
end
return { now_ms, results, expired }
