-- Provides ticket_above_holders(lock): a ticket above those of all holders; 1 if no name has one.
-- A holder may give the lock back and return to its place: its name ends with its ticket. See
-- hand_over.
local function ticket_above_holders(lock)
  local above = 1
  local fields = on_own('HLEN', lock)
  if fields and fields <= 2048 then
    for _, name in ipairs(redis.call('HKEYS', lock)) do
      local ticket = tonumber(string.match(name, '~%x+%.(%d+)$') or 0)
      if ticket >= above and ticket < 2 ^ 53 - 1 then
        above = ticket + 1
      end
    end
  end
  return above
end
