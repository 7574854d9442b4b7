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

--#include clock
--#include on_own
--#include mine
--#include lengthen

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
