-- Provides is_mine(lock, owner): whether this owner has the lock. False for a
-- key of another type.
local function is_mine(lock, owner)
  return on_own('HEXISTS', lock, owner) == 1
end
