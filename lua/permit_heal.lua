-- Gives permits to a master that does not have them, because a quorum of the others has confirmed them.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   token     string  the last fencing token
--   leases    zset    owners by the time (ms) at which their leases end
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid>#<permits>/<limit> of this hold
--   value         int    the slot; -n for n > 1 permits
--   lease_ms      ms     its lease from now on
--   fence         int    its fencing token
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   healed   now_us           the hold is here (again), or was
--   refused  now_us           another owner has the slot, or a key is another program's
--   void     now_us           came too late, nothing was done
--   no_vote  now_us until_us  this master may have forgotten leases until then
-- WRITES
--   permits   the latest lease
--   leases    the latest lease
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival finds the hold, and lengthens its lease.

--#include time
--#include clock
--#include digits
--#include spare
--#include on_own
--#include lengthen
--#include remember
--#include last_token
--#include know_token
--#include just_now
--#include vote
--#include leases

local permits = KEYS[1]
local token = KEYS[2]
local leases = KEYS[3]
local master = KEYS[4]
local owner = ARGV[1]
local value = ARGV[2]
local lease_ms = ARGV[3]
local fence = ARGV[4]
local not_after_us = ARGV[5]
local incarnation = ARGV[6]
local guard_ms = ARGV[7]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
local until_us, take_guard = no_vote_until(master, incarnation, guard_ms, owner, now_us)
if until_us then
  return { 'no_vote', now_us, until_us }
end
reap(permits, leases, now_us)
local view = look(permits, leases, now_us)
local holder = view and view.slots[tonumber(value)]
if not view or (holder and holder ~= owner) then
  return { 'refused', now_us }
end
-- The number of permits is not judged: a quorum has these already.
if redis.call('HEXISTS', permits, owner) == 0 then
  redis.call('HSET', permits, owner, value)
end
if take_guard then
  take_guard()
end
keep_lease(permits, leases, owner, lease_ms, now_us)
know_token(token, fence, now_us, lease_ms, latest_ms(permits, lease_ms))
return { 'healed', now_us }
