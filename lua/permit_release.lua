-- Ends the permits of this owner, and the place of its waiter. Then gives the slot to the first
-- waiter, or wakes that waiter. Also undoes an attempt whose outcome is not known.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   leases    zset    owners by the time (ms) at which their leases end
--   limit     string  an operator's limit, in place of that in the names
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid>#<permits>/<limit> of the hold, which is never used again
--   fence         int    its fencing token, written here if it is missing; 0 if a quorum of masters knows it
--   token_ms      ms     how long a fencing token is remembered at least
--   hand          flag   1: a waiter that takes grants is given the slot; 0: it is only woken
--   not_after_us  us     time on this master's clock after which no waiter is given the slot, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   'released now_us'  the permits were here and have ended
--   'absent now_us'    there was no such hold (any more)
-- WRITES
--   permits   the latest lease
--   leases    the latest lease
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   grant  to the first waiter that listens, if it wants one permit, takes grants, and the slot is free
--   wake   to the same, if not; after a grant, to the next, when more permits are free
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more.

--#include time
--#include now
--#include just_now

local permits = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local leases = KEYS[5]
local limit = KEYS[6]
local master = KEYS[7]
local owner = ARGV[1]
local fence = ARGV[2]
local token_ms = ARGV[3]
local hand = ARGV[4]
local not_after_us = ARGV[5]
local incarnation = ARGV[6]
local guard_ms = ARGV[7]

-- HDEL is the first write: a master that is out of memory allows it, and after it the writes that follow.
local value = redis.pcall('HGET', permits, owner)
local ended = redis.pcall('HDEL', permits, owner)
local is_gone = redis.pcall('ZREM', leases, owner)
if ended == 1 and is_gone == 1 and fence == '0' and redis.call('EXISTS', queue) == 0 then
  return 'released ' .. now -- the usual case: nobody waits
end

--#include clock
--#include digits
--#include spare
--#include remember
--#include last_token
--#include on_own

if ended ~= 1 then
  ended = on_own('HDEL', permits, owner) -- again, to raise the error, unless the key is of another type
end
on_own('ZREM', leases, owner)
-- Even if there is no such hold: a master that has forgotten the token must learn it again.
if fence ~= '0' and tonumber(fence) > last_token(token) then
  remember(token, tonumber(fence), now_us, math.max(redis.call('PTTL', permits), tonumber(token_ms)))
end
if redis.call('EXISTS', queue) == 1 then
  --#include lengthen
  --#include tell
  --#include queue
  --#include waiter
  --#include vote
  --#include wanted
  --#include leases
  --#include fit
  --#include pass_on
  --#include hand_permit

  local waiter = waiter_of(owner)
  if on_own('ZREM', queue, waiter) == 1 then
    on_own('ZREM', waiters, waiter)
  end
  reap(permits, leases, now_us)
  local view = look(permits, leases, now_us)
  if view then
    drop_overdue(queue, waiters, now_us)
  end
  if view and has_room(queue, limit, view.used) then
    local slot = ended == 1 and tonumber(value) or -1
    if hand == '1' and slot >= 0 and not view.slots[slot] and now_us <= tonumber(not_after_us)
      and not no_vote_until(master, incarnation, guard_ms, owner, now_us) then
      local used = hand_permit(permits, queue, waiters, token, leases, limit, view.used, slot, owner, incarnation, now_us)
      if used then
        pass_on(permits, queue, waiters, limit, used, nil)
      end
    else
      wake_first(permits, queue, waiters, nil)
    end
  end
end
if ended == 1 then
  return 'released ' .. now
end
return 'absent ' .. now
