-- Provides lengthen(key, ttl_ms): the key lives for ttl_ms from now, or as long
-- as it would have lived anyway: no script shortens a lease. This always writes
-- (PEXPIRE, which a master that is out of memory still takes), so that a write
-- after it in the same script is not refused for lack of memory.
local function lengthen(key, ttl_ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ttl_ms), 1))
end
