-- Provides digits(number): an integer as text. Lua's own tostring keeps 14
-- digits, too few for a time in microseconds.
local function digits(number)
  return string.format('%.0f', number)
end
