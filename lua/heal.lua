-- Gives a hold to a master that does not have it, because a quorum of the others has confirmed it.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   token     string  the last fencing token
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid> of the hold
--   value         text   its hold count; a note may follow, after a blank
--   lease_ms      ms     its lease from now on
--   fence         int    its fencing token
--   not_after_us  us     time on this master's clock after which this call does nothing
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   healed   now_us           the hold is here (again), or was
--   refused  now_us           another owner's hold is here
--   void     now_us           came too late, nothing was done
--   no_vote  now_us until_us  this master may have forgotten leases until then
-- WRITES
--   lock      lease_ms
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
--#include holder
--#include lengthen
--#include remember
--#include last_token
--#include know_token
--#include just_now
--#include vote

local lock = KEYS[1]
local token = KEYS[2]
local master = KEYS[3]
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
local holder = holder_of(lock)
local is_here = holder and on_own('HEXISTS', lock, owner) == 1 -- maybe beside a reader that is the same owner
if holder and not is_here then
  return { 'refused', now_us }
end
if not is_here then
  redis.call('HSET', lock, owner, value)
end
if take_guard then
  take_guard()
end
lengthen(lock, lease_ms)
know_token(token, fence, now_us, lease_ms, lease_ms)
return { 'healed', now_us }
