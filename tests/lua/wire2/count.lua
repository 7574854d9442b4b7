-- Writes the hold count of a hold that is here: a nested acquire or release.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
-- ARGV
--   owner     text   <client>:<uuid> of the hold
--   count     int    the count that the owner wants, 1 or more
--   lease_ms  ms     the lease to have from now on, if that is longer than the present one
--   void_us   us     time on this master's clock after which this call does nothing
-- RETURNS
--   counted   now_us  the count is written
--   absent    now_us  there is no such hold (any more)
--   void      now_us  came too late, nothing was done
-- WRITES
--   lock      lease_ms
-- PUBLISHES
--   none
-- REPEATABLE
--   The count is absolute: a second arrival writes the same.

-- Provides now_us: this master's clock, in microseconds.
-- Read once: before Redis 7.2 two TIME calls of one script can differ.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
-- Provides on_hash(command, key, ...): a command on a hash, or nil where the key
-- holds another type: that is some other library's lock. Any other error, such
-- as a right that is missing, is the caller's to hear.
local function on_hash(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
      return nil
    end
    return redis.call(command, key, ...)
  end
  return reply
end
-- Provides is_mine(lock, owner): whether this owner has the lock. False for a
-- key of another type.
local function is_mine(lock, owner)
  return on_hash('HEXISTS', lock, owner) == 1
end
-- Provides lengthen(key, ttl_ms): the key lives for ttl_ms from now, or as long
-- as it would have lived anyway: no script shortens a lease. This always writes
-- (PEXPIRE, which a master that is out of memory still takes), so that a write
-- after it in the same script is not refused for lack of memory.
local function lengthen(key, ttl_ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ttl_ms), 1))
end

local lock = KEYS[1]
local owner = ARGV[1]
local count = ARGV[2]
local lease_ms = ARGV[3]
local void_us = ARGV[4]

if now_us > tonumber(void_us) then
  return { 'void', now_us }
end
if not is_mine(lock, owner) then
  return { 'absent', now_us }
end
lengthen(lock, lease_ms)
redis.call('HSET', lock, owner, count)
return { 'counted', now_us }
