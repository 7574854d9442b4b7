-- Renews the lease of a reader's hold that is here. Never creates one, never shortens it.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
-- ARGV
--   owner         text   <client>:<uuid>& of the hold
--   lease_ms      ms     the lease to have from now on
--   token_ms      ms     how long the token is remembered at least; more than the lease
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
-- RETURNS
--   'extended now_us'  the lease lasts at least lease_ms from now
--   'absent now_us'    there is no such hold (any more), or its lease has ended
--   'void now_us'      came too late, nothing was done
-- WRITES
--   lock      the latest lease
--   leases    the latest lease
--   token     token_ms
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival extends the same hold again.

--#include time
--#include now

local lock = KEYS[1]
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
--#include readers

local end_ms = on_own('ZSCORE', leases, owner)
if not end_ms or on_own('HEXISTS', lock, owner) ~= 1 or tonumber(end_ms) <= math.floor(now_us / 1000) then
  return 'absent ' .. now
end
keep_lease(lock, leases, owner, lease_ms, now_us)
lengthen(token, token_ms)
if not writer_of(lock, leases) then
  end_with_latest(lock, leases, now_us) -- the owner's hold as the writer, which has ended, may have had a longer lease
end
return 'extended ' .. now
