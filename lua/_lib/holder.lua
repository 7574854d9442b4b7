-- Provides holder_of(lock): who has the lock, or nil when it is free. A key of
-- another type reads as held, by a holder without a name, and is never an error.
local function holder_of(lock)
  local owners = on_own('HKEYS', lock)
  if not owners then
    return ''
  end
  return owners[1]
end
