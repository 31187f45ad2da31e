-- Append one event to the shard's stream. Needs clock, number.
-- KEYS[3] events, KEYS[4] number, KEYS[5] counts, ARGV[3] event_cap: the same in every script.
-- Never fails its caller: an audit log must not be able to stop a lock (promise P10). What could
-- not be appended has used up its number, so the collector sees the gap, and is counted.
-- Few and the same fields in all entries, which a stream stores once per node: the name, and one
-- text with the rest (number kind fence at detail; the shape of detail follows from the kind).
-- The cap is applied at every 100th event, a node's worth.
local function emit(name, kind, fence, detail)
  local number = redis.pcall('INCR', KEYS[4])
  local appended
  if type(number) == 'table' then
    number = 0
  end
  local event = whole(number) .. ' ' .. kind .. ' ' .. fence .. ' ' .. us_text .. ' ' .. detail
  if number % 100 == 0 then
    appended = redis.pcall('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'name', name,
      'event', event)
  else
    appended = redis.pcall('XADD', KEYS[3], '*', 'name', name, 'event', event)
  end
  if type(appended) == 'table' and appended.err then
    redis.pcall('HINCRBY', KEYS[5], 'failed', 1)
  end
end

-- Count what is too frequent for an event, per family (the name's first part).
local function count(what, name)
  redis.pcall('HINCRBY', KEYS[5], what .. ':' .. string.match(name, '^[^:]*'), 1)
end
