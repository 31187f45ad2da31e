-- Write a grant. Needs clock, number, events. The one place where a holder comes into being.
-- KEYS[1] held, KEYS[2] fence, ARGV[1] safety_ms: the same in every script.

-- A holder's record: deadline ttl weight limit fence granted max_hold state process description.
-- limit is what all weights may add up to as this holder sees it; the smallest of all applies.
-- state is `held`, or `claim` for a hand-off that its holder has not been heard of since.
-- Joined, not formatted: its parts are text already, except the deadline.
local function record_of(deadline, ttl, weight, limit, fence, granted, max_hold, state, process,
    description)
  return whole(deadline) .. ' ' .. ttl .. ' ' .. weight .. ' ' .. limit .. ' ' .. fence .. ' '
    .. granted .. ' ' .. max_hold .. ' ' .. state .. ' ' .. process .. ' ' .. description
end

-- Until when a grant of now may last.
local function deadline_of(life_ms, max_hold)
  if max_hold ~= '0' then
    life_ms = math.min(life_ms, max_hold)
  end
  return now_ms + life_ms
end

-- Make a token a holder; return its fencing token, as text. That grows past every earlier one, and past the
-- server's clock in microseconds, so that it grows also when the counter was lost (promise P9).
local function grant(name, key, token, deadline, ttl, weight, limit, max_hold, state, process,
    waited_ms, description)
  local fence = us_text
  local last = redis.call('SET', KEYS[2], fence, 'GET')
  if last and tonumber(last) >= now_us then
    fence = whole(last + 1)
    redis.call('SET', KEYS[2], fence)
  end
  redis.call('HSET', key, 'h:' .. token, record_of(deadline, ttl, weight, limit, fence, ms_text,
    max_hold, state, process, description))
  emit(name, 'acquired', fence, waited_ms .. ' ' .. ttl .. ' ' .. weight .. ' ' .. limit .. ' '
    .. max_hold .. ' ' .. description)
  return fence
end

-- The index and the safety expiry of a lock that is held. Always the last writes.
local function index(name, key, earliest, latest)
  redis.call('PEXPIREAT', key, whole(latest + ARGV[1]))
  redis.call('ZADD', KEYS[1], whole(earliest), name)
end
