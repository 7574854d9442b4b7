-- Provides lengthen(key, ttl_ms): the key lives for ttl_ms from now, or longer if its time
-- to live is longer already: no script shortens a lease. This always writes: a master that
-- is out of memory allows PEXPIRE, and after that it allows the script's other writes, too.
local function lengthen(key, ttl_ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ttl_ms), 1))
end
