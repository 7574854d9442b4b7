-- Renews the lease of permits that are here. Never creates one, never shortens it.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   token     string  the last fencing token
--   leases    zset    owners by the time (ms) at which their leases end
-- ARGV
--   owner         text   <client>:<uuid>#<permits>/<limit> of this hold
--   lease_ms      ms     the lease to have from now on
--   token_ms      ms     how long the token is remembered at least; more than the lease
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
-- RETURNS
--   'extended now_us'  the lease lasts at least lease_ms from now
--   'absent now_us'    there is no such hold (any more), or its lease has ended
--   'void now_us'      came too late, nothing was done
-- WRITES
--   permits   the latest lease
--   leases    the latest lease
--   token     token_ms
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival extends the same hold again.

--#include time
--#include now

local permits = KEYS[1]
local token = KEYS[2]
local leases = KEYS[3]
local owner = ARGV[1]
local lease_ms = ARGV[2]
local token_ms = ARGV[3]
local not_after_us = ARGV[4]

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return 'void ' .. now
end

--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include leases

local end_ms = on_own('ZSCORE', leases, owner)
if not end_ms or on_own('HEXISTS', permits, owner) ~= 1 or tonumber(end_ms) <= math.floor(now_us / 1000) then
  return 'absent ' .. now
end
keep_lease(permits, leases, owner, lease_ms, now_us)
lengthen(token, token_ms)
return 'extended ' .. now
