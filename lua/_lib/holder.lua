-- Provides holder_of(lock): who has the lock, or nil when it is free.
-- A key of another type belongs to some other library's lock. That reads as
-- held, by a holder without a name, and is never an error.
local function holder_of(lock)
  local owners = redis.pcall('HKEYS', lock)
  if owners.err then
    return ''
  end
  return owners[1]
end
