-- The server's clock, the only one that decides anything: as numbers, and as text to be written.
-- (TIME's microseconds are not padded. 2^53 holds microseconds until the year 2255.)
local clock = redis.call('TIME')
local micro = string.sub('00000' .. clock[2], -6)
local milli = string.sub(micro, 1, 3)
local us_text, ms_text = clock[1] .. micro, clock[1] .. milli
local now_us, now_ms = clock[1] * 1000000 + clock[2], clock[1] * 1000 + milli
