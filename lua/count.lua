-- Writes the hold count of a hold that is here: a nested acquire or release.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
-- ARGV
--   owner         text   <client>:<uuid> of the hold
--   count         text   the count that the owner wants; a note may follow, after a blank
--   lease_ms      ms     the lease from now on, if that is longer than what is left; 0: leave the lease
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
-- RETURNS
--   'counted now_us'  the count is written
--   'absent now_us'   there is no such hold (any more)
--   'void now_us'     came too late, nothing was done
-- WRITES
--   lock      lease_ms
-- PUBLISHES
--   none
-- REPEATABLE
--   The count is absolute: a second arrival writes the same.

--#include time
--#include now

local lock = KEYS[1]
local owner = ARGV[1]
local count = ARGV[2]
local lease_ms = ARGV[3]
local not_after_us = ARGV[4]

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return 'void ' .. now
end
if lease_ms == '0' and redis.pcall('HEXISTS', lock, owner) == 1 and redis.pcall('HSET', lock, owner, count) == 0 then
  return 'counted ' .. now
end

--#include on_own
--#include mine
--#include lengthen

if not is_mine(lock, owner) then
  return 'absent ' .. now
end
-- A master that is out of memory allows HDEL and PEXPIRE, and after either HSET.
if lease_ms == '0' then
  redis.call('HDEL', lock, '') -- changes nothing; PEXPIRE would give an end to a lease that has none
else
  lengthen(lock, lease_ms)
end
redis.call('HSET', lock, owner, count)
return 'counted ' .. now
