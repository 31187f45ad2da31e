-- Those who wait for one lock: a queue of tokens by ticket, and a hash of their records.

-- A waiter's record: seen-until ttl weight limit max_hold queued-since process description. Text,
-- but the first.
local function read_waiter(lock, token)
  local record = redis.call('HGET', lock.waiters, token)
  if not record then
    return nil
  end
  local seen, ttl, weight, limit, max_hold, queued, process, description = string.match(
    record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return {
    token = token, seen = tonumber(seen), ttl = ttl, weight = weight, limit = limit,
    max_hold = max_hold, queued = queued, process = process,
    description = description,
  }
end

local function drop_waiter(lock, token)
  redis.call('ZREM', lock.queue, token)
  redis.call('HDEL', lock.waiters, token)
end

local function forget_queue(lock)
  lock.waiting = false
  redis.call('HDEL', lock.key, 'q')
end

-- A waiter goes of its own will, perhaps the last one.
local function leave(lock, token)
  drop_waiter(lock, token)
  if lock.waiting and redis.call('EXISTS', lock.queue) == 0 then
    forget_queue(lock)
  end
end

-- A claim lapsed: its process is dead or frozen, so its other waiters would lapse one after the
-- other. They are dropped together, and queue again if they live.
local function drop_waiters_of(lock, process)
  local flat = redis.call('HGETALL', lock.waiters)
  for i = 1, #flat, 2 do
    if string.match(flat[i + 1], '^%d+ %d+ %d+ %d+ %d+ %d+ (%S+) ') == process then
      drop_waiter(lock, flat[i])
    end
  end
end
