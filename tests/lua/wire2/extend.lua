-- Renews the lease of a hold that is here. Never creates one, never shortens it.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   token     string  the last fencing token
-- ARGV
--   owner     text   <client>:<uuid> of the hold
--   lease_ms  ms     the lease to have from now on
--   void_us   us     time on this master's clock after which this call does nothing
-- RETURNS
--   extended  now_us  the lease lasts at least lease_ms from now
--   absent    now_us  there is no such hold (any more)
--   void      now_us  came too late, nothing was done
-- WRITES
--   lock      lease_ms
--   token     lease_ms and a second
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival extends the same hold again.

-- Provides now_us: this master's clock, in microseconds.
-- Read once: before Redis 7.2 two TIME calls of one script can differ.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
-- Provides token_spare_ms: by how much the key of the last fencing token outlives a lease.
local token_spare_ms = 1000
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
local token = KEYS[2]
local owner = ARGV[1]
local lease_ms = ARGV[2]
local void_us = ARGV[3]

if now_us > tonumber(void_us) then
  return { 'void', now_us }
end
if not is_mine(lock, owner) then
  return { 'absent', now_us }
end
lengthen(lock, lease_ms)
lengthen(token, lease_ms + token_spare_ms)
return { 'extended', now_us }
