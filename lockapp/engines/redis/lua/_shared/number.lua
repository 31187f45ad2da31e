-- A whole number as text. Lua's own conversion rounds to 14 digits; redis.call keeps all digits of a
-- number but takes longer over it than over text, so what is known as text stays text.
local function whole(number)
  return string.format('%.0f', number)
end
