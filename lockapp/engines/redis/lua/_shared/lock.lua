-- One lock's hash, read into a table, and the changes that scripts make to it.
-- Needs clock, number, events, grant, waiters. A lock hash has these fields:
--   h:<token>    a holder's record
--   r:<token>    a request to its holder to let go (JSON: actor and reason)
--   t:<token>    a tombstone: until kind note
--   q            the last ticket of the queue; there while somebody may be waiting

local function write_holder(lock, holder)
  lock.changed = true
  redis.call('HSET', lock.key,
    'h:' .. holder.token, record_of(holder.deadline, holder.ttl, holder.weight, holder.limit,
      holder.fence, holder.granted, holder.max_hold, holder.state, holder.process,
      holder.description))
end

-- Carry out what drop_holder put off. Never later than the next holder is written.
local function flush_dropped(lock)
  if lock.dropped[1] then
    redis.call('HDEL', lock.key, unpack(lock.dropped))
    lock.dropped = {}
  end
end

-- End a holder: `kind` names the event, `detail` goes with it.
-- The fields go when the next holder is written, or with the whole key when there is none.
local function drop_holder(lock, holder, kind, detail)
  lock.dropped[#lock.dropped + 1] = 'h:' .. holder.token
  lock.dropped[#lock.dropped + 1] = 'r:' .. holder.token
  if holder.state == 'claim' then
    redis.call('DEL', KEYS[6] .. holder.token) -- its grant may still lie in its inbox
  end
  lock.holders[holder.token] = nil
  lock.used = lock.used - holder.weight
  lock.limit, lock.changed = nil, true
  emit(lock.name, kind, holder.fence, (now_ms - holder.granted) .. ' ' .. detail)
end

local function expire_holder(lock, holder)
  local why = ''
  if holder.state == 'claim' then
    why = 'claim'
  elseif holder.max_hold ~= '0' and now_ms >= holder.granted + holder.max_hold then
    why = 'max_hold'
  end
  lock.expired[holder.token] = true
  drop_holder(lock, holder, 'expired', why)
  if why == 'claim' then
    drop_waiters_of(lock, holder.process)
  end
end

-- All of it is text but the deadline; Lua's arithmetic takes digits for numbers, comparisons don't.
local function read_holder(token, text)
  local deadline, ttl, weight, limit, fence, granted, max_hold, state, process, description =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a+) (%S+) (.*)$')
  return {
    token = token, deadline = tonumber(deadline), ttl = ttl, weight = weight, limit = limit,
    fence = fence, granted = granted, max_hold = max_hold, state = state, process = process,
    description = description,
  }
end

-- Read the lock; holders whose deadline has passed and tombstones of no more use are dropped.
-- A deadline further away than the ttl means that the server's clock was set back: clamp it.
local function open_lock(name, key, queue, waiters, flat)
  local lock = {
    name = name, key = key, queue = queue, waiters = waiters, used = 0,
    holders = {}, expired = {}, tombstones = {}, dropped = {}, buried_until = 0,
  }
  local late, clamped = {}, {}
  flat = flat or redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    local field, value = flat[i], flat[i + 1]
    local tag, token = string.sub(field, 1, 2), string.sub(field, 3)
    if tag == 'h:' then
      local holder = read_holder(token, value)
      lock.holders[token] = holder
      lock.used = lock.used + holder.weight
      if holder.deadline > now_ms + holder.ttl then
        holder.deadline = now_ms + holder.ttl
        clamped[#clamped + 1] = holder
      elseif holder.deadline <= now_ms then
        late[#late + 1] = holder
      end
    elseif tag == 't:' then
      local ends, kind, note = string.match(value, '^(%d+) (%a+) (.*)$')
      if tonumber(ends) <= now_ms then
        lock.changed = true
        redis.call('HDEL', key, field)
      else
        lock.tombstones[token] = { kind = kind, note = note }
        lock.buried_until = math.max(lock.buried_until, tonumber(ends))
      end
    elseif field == 'q' then
      lock.waiting = true
    end
  end
  for i = 1, #clamped do
    write_holder(lock, clamped[i])
  end
  for i = 1, #late do
    expire_holder(lock, late[i])
  end
  return lock
end

-- Refuse this token from now on: a request of it may arrive late, or its holder must learn why.
local function bury(lock, token, kind, note, life_ms)
  lock.changed = true
  local ends = now_ms + life_ms
  redis.call('HSET', lock.key, 't:' .. token, whole(ends) .. ' ' .. kind .. ' ' .. note)
  lock.tombstones[token] = { kind = kind, note = note }
  lock.buried_until = math.max(lock.buried_until, ends)
end

-- Last write of each script: the index and the safety expiry follow what the lock has become, if
-- that has changed. Returns when the first of its holders ends, nil when there is none.
-- KEYS[1] held, ARGV[1] safety_ms: the same in every script.
local function settle(lock)
  local earliest, latest
  for _, holder in pairs(lock.holders) do
    local deadline = holder.deadline
    if not earliest or deadline < earliest then
      earliest = deadline
    end
    if not latest or deadline > latest then
      latest = deadline
    end
  end
  if earliest then
    if not lock.changed then
      return earliest
    end
    flush_dropped(lock)
    index(lock.name, lock.key, earliest, math.max(latest, lock.buried_until))
    return earliest
  end
  redis.call('ZREM', KEYS[1], lock.name)
  if lock.buried_until > now_ms then
    flush_dropped(lock)
    redis.call('PEXPIREAT', lock.key, lock.buried_until)
  else
    redis.call('DEL', lock.key)
  end
end

-- The holder whose lease ends first, for people: fence granted deadline ttl confirmed description weight.
local function foremost(lock)
  local first
  for _, holder in pairs(lock.holders) do
    if not first or holder.deadline < first.deadline then
      first = holder
    end
  end
  if not first then
    return {}
  end
  return {
    tonumber(first.fence), tonumber(first.granted), first.deadline, tonumber(first.ttl),
    first.state == 'held' and 1 or 0, first.description,
    tonumber(first.weight),
  }
end
