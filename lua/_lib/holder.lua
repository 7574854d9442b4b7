-- Provides holder_of(lock): who has the lock, or nil when it is free. A key of
-- another type, and a hash with more fields than a few, where a hold has one, read as
-- held, by a holder without a name, and are never an error. Their names may be long.
local function holder_of(lock)
  local fields = on_own('HLEN', lock)
  if not fields or fields > 16 then
    return ''
  end
  return redis.call('HKEYS', lock)[1]
end
