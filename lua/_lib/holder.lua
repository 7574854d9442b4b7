-- Provides holder_of(lock): the holder, or nil if the lock is free. A key of another type
-- counts as held by a holder without a name. So does a hash with many fields: a hold has
-- one field, and to read the fields of another program's hash may take long.
local function holder_of(lock)
  local fields = on_own('HLEN', lock)
  if not fields or fields > 16 then
    return ''
  end
  return redis.call('HKEYS', lock)[1]
end
