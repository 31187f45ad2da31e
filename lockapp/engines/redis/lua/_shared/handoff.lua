-- Hand free capacity to the first live waiters. Needs clock, number, events, grant, waiters, lock.
-- KEYS[6] grant prefix, ARGV[2] claim_ms: the same in every script.

-- Make a waiter, or the caller, one of the lock's holders.
local function add_holder(lock, holder, state, life_ms, waited_ms)
  flush_dropped(lock)
  lock.changed = true
  holder.state, holder.granted = state, ms_text
  holder.deadline = deadline_of(life_ms, holder.max_hold)
  holder.fence = grant(lock.name, lock.key, holder.token, holder.deadline, holder.ttl,
    holder.weight, holder.limit, holder.max_hold, state, holder.process, waited_ms,
    holder.description)
  lock.holders[holder.token] = holder
  lock.used = lock.used + holder.weight
  lock.limit = nil
end

-- The smallest limit of the holders.
local function limit_of(lock)
  if not lock.limit then
    lock.limit = math.huge
    for _, holder in pairs(lock.holders) do
      lock.limit = math.min(lock.limit, holder.limit)
    end
  end
  return lock.limit
end

-- Whether one more of this weight fits, under the smallest limit of those concerned. So a mutex
-- and a semaphore of one name exclude each other, and a limit that is raised takes effect when
-- those who know the old one have gone.
local function fits(lock, weight, limit)
  return lock.used + weight <= math.min(limit_of(lock), limit)
end

-- Every script that frees capacity, or takes somebody out of the queue, ends with this. Of a full
-- lock the queue is not even looked at: whoever is first, nobody fits.
-- The holder is written before its inbox, so that a failure in between costs a claim window and
-- never leaves a grant without a holder behind it.
local function hand_off(lock)
  while lock.waiting and lock.used < limit_of(lock) do
    local token = redis.call('ZRANGE', lock.queue, 0, 0)[1]
    if not token then
      forget_queue(lock)
      return
    end
    local waiter = read_waiter(lock, token)
    if not waiter or waiter.seen <= now_ms then
      drop_waiter(lock, token)
    elseif not fits(lock, waiter.weight, waiter.limit) then
      return
    else
      local holder = {
        token = token, ttl = waiter.ttl, weight = waiter.weight, limit = waiter.limit,
        max_hold = waiter.max_hold, process = waiter.process, description = waiter.description,
      }
      local claim_ms = math.min(waiter.ttl, tonumber(ARGV[2]))
      add_holder(lock, holder, 'claim', claim_ms, now_ms - waiter.queued)
      drop_waiter(lock, token)
      local inbox = KEYS[6] .. token
      redis.call('RPUSH', inbox, whole(holder.deadline) .. ' ' .. holder.fence)
      redis.call('PEXPIREAT', inbox, holder.deadline)
    end
  end
end
