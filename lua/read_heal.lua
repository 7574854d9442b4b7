-- Gives a reader's hold that a quorum has to a master without it. Never takes a writer's lock.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
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
--   lock      the latest lease
--   leases    the latest lease
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival finds the hold and lengthens its lease.

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
--#include readers

local lock = KEYS[1]
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
reap(lock, leases, now_us)
local writer = writer_of(lock, leases)
if writer and not is_own(writer, owner) then
  return { 'refused', now_us }
end
let_in(lock, leases, owner, value, writer)
if take_guard then
  take_guard()
end
keep_lease(lock, leases, owner, lease_ms, now_us)
know_token(token, fence, now_us, lease_ms, latest_ms(lock, lease_ms))
return { 'healed', now_us }
