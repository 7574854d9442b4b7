-- Provides lengthen(key, ttl_ms): the key lives for ttl_ms from now, or for what it
-- has left if that is longer: no script shortens a lease. It always writes, and a
-- master that is out of memory allows PEXPIRE. After that write, Redis refuses no
-- other one of the same script for lack of memory.
local function lengthen(key, ttl_ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ttl_ms), 1))
end
