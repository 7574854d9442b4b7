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

--#include clock
--#include spare
--#include on_own
--#include mine
--#include lengthen

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
