-- Provides holder_of(lock): the holder, or nil when the lock is free. A key of another
-- type reads as held by a holder without a name, and so does a hash with many fields:
-- a hold has one field, and those of another program may be long.
local function holder_of(lock)
  local fields = on_own('HLEN', lock)
  if not fields or fields > 16 then
    return ''
  end
  return redis.call('HKEYS', lock)[1]
end
