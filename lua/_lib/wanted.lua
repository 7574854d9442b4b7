-- Provides wanted_of(name): how many permits a waiter or an owner wants, and the limit in its
-- code, from the mark #<permits>/<limit> that ends its uuid. Nil for a name without a mark.
local function wanted_of(name)
  local n, limit = string.match(name, '^[^:]*:[^#~]*#(%d+)/(%d+)')
  if n then
    return math.max(1, tonumber(n)), tonumber(limit)
  end
end
