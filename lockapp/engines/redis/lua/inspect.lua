#!lua flags=no-writes
-- Read the live holders (and, when asked, the queue) of some names, for people.
-- Keys: three per name
--   1… lock, queue, waiters
-- Args: 1
--   1 waiters     integer how many waiters to describe per name; 0: count them only
-- Returns: now_ms, then per name {limit, waiting, {holders}, {waiters}}
--   holder: fence, granted_ms, deadline_ms, ttl_ms, confirmed, description, weight, request
--   waiter: queued_ms, seen_until_ms, description, weight
-- Time: server TIME.
-- Cost: O(names · (holders + tombstones) + waiters shown).
-- Since: Redis 7.0.
-- Invariant: tokens never leave the server.
-- include: _shared/clock.lua
local function holders_of(key)
  local found, least, fields = {}, math.huge, {}
  local flat = redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 2) == 'h:' then
      local deadline, ttl, weight, limit, fence, granted, state, description = string.match(
        flat[i + 1], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ (%a+) %S+ (.*)$')
      if tonumber(deadline) > now_ms then
        local token = string.sub(flat[i], 3)
        found[#found + 1] = {
          tonumber(fence), tonumber(granted), tonumber(deadline), tonumber(ttl),
          state == 'held' and 1 or 0, description, tonumber(weight),
          fields['r:' .. token] or '',
        }
        least = math.min(least, tonumber(limit))
      end
    end
  end
  return found, found[1] and least or 0
end

local function waiters_of(queue, waiters, most)
  local found = {}
  for _, token in ipairs(redis.call('ZRANGE', queue, 0, most - 1)) do
    local record = redis.call('HGET', waiters, token) or '0 0 0 0 0 0 - {}'
    local seen, weight, queued, description = string.match(
      record, '^(%d+) %d+ (%d+) %d+ %d+ (%d+) %S+ (.*)$')
    found[#found + 1] = { tonumber(queued), tonumber(seen), description, tonumber(weight) }
  end
  return found
end

local reply, most = { now_ms }, tonumber(ARGV[1])
for i = 1, #KEYS, 3 do
  local holders, limit = holders_of(KEYS[i])
  local waiters = most > 0 and waiters_of(KEYS[i + 1], KEYS[i + 2], most) or {}
  reply[#reply + 1] = { limit, redis.call('ZCARD', KEYS[i + 1]), holders, waiters }
end
return reply
