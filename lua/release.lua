-- Ends what this owner has here, a hold or a place in the queue. Gives the lock to
-- the first waiter, or tells it that it is its turn. It also undoes an attempt whose
-- outcome is not known.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid> of the hold, which is never used again
--   fence         int    its fencing token, written here if it is missing; 0 where a quorum of masters gave it
--   token_ms      ms     how long a fencing token is remembered at least
--   hand          flag   1: a waiter that takes grants is given the lock; 0: it is told that it is its turn
--   not_after_us  us     time on this master's clock after which nobody is given anything, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   'released now_us'  the hold was here and has ended
--   'absent now_us'    there was no such hold (any more)
-- WRITES
--   lock      what the waiter's name says: the lease that it may be given
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   grant  to the first waiter that listens, if it takes grants, when the lock is free
--   wake   to the same, if it does not
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more, or give it the lock while that is free.

--#include time
--#include now
--#include just_now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local master = KEYS[5]
local owner = ARGV[1]
local fence = ARGV[2]
local token_ms = ARGV[3]
local hand = ARGV[4]
local not_after_us = ARGV[5]
local incarnation = ARGV[6]
local guard_ms = ARGV[7]

-- HDEL comes first: a master that is out of memory allows it, and after it the writes that follow.
local ended = redis.pcall('HDEL', lock, owner)
local last -- token, where a new one has just been written
if ended == 1 then
  -- The usual case ends here, before it pays for the functions of the others: nobody waits, or the first one gets it.
  local kept = redis.call('EXISTS', lock, queue)
  if kept == 0 and fence == '0' then
    return 'released ' .. now
  end
  -- The waiter's token is larger than the fence, so writing it takes the place of writing the fence.
  if kept == 1 and hand == '1' and (fence == '0' or (#fence == #now and fence < now))
    and (now <= not_after_us or tonumber(now) <= tonumber(not_after_us)) then
    --#include has_vote
    --#include hand_usual
    if is_handed then
      return 'released ' .. now
    end
  end
end

--#include clock
--#include digits
--#include spare
--#include remember
--#include last_token
--#include on_own

if last then
  token_above(last, token, now_us, token_ms) -- nobody got the lock with the one that was written
end
if ended ~= 1 then
  ended = on_own('HDEL', lock, owner) -- again: a key of another type is no error, and others are raised
end
-- Even where there is no such hold: a master that has forgotten the token must know it again.
if fence ~= '0' and tonumber(fence) > last_token(token) then
  remember(token, tonumber(fence), now_us, token_ms)
end
if redis.call('EXISTS', queue) == 1 then
  --#include tell
  --#include queue
  --#include waiter
  --#include vote
  --#include hand_over

  local waiter = waiter_of(owner)
  if on_own('ZREM', queue, waiter) == 1 then
    on_own('ZREM', waiters, waiter)
  end
  -- That this hold has ended does not make the lock free: its hash may have more fields.
  if redis.call('EXISTS', lock) == 0 then
    drop_overdue(queue, waiters, now_us)
    if hand == '1' and now_us <= tonumber(not_after_us)
      and not no_vote_until(master, incarnation, guard_ms, owner, now_us) then
      hand_over(lock, queue, waiters, token, owner, incarnation, now_us)
    else
      wake_first(lock, queue, waiters, nil)
    end
  end
end
if ended == 1 then
  return 'released ' .. now
end
return 'absent ' .. now
