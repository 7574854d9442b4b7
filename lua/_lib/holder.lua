-- Provides holder_of(lock): the holder, or nil if the lock is free; one of several readers. A
-- writer beside its own reader is the holder. A key of another type counts as held by a holder
-- without a name. So does a hash with very many fields: to read the fields of another program's
-- hash may take long.
local function holder_of(lock)
  local fields = on_own('HLEN', lock)
  if not fields or fields > 2048 then
    return ''
  end
  local names = redis.call('HKEYS', lock)
  for i = 1, math.min(fields, 16) do -- a writer has few others beside it
    if not string.find(names[i], '&', 1, true) then
      return names[i]
    end
  end
  return names[1]
end

-- Provides is_reader(holder): whether other readers may have the lock as well. True for a holder
-- without a name, too: very many fields are those of readers, or of a hash that no reader gets.
local function is_reader(holder)
  return holder == '' or string.find(holder, '&', 1, true) ~= nil
end
