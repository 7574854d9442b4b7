-- Ends the hold of this owner, and the place of its waiter. Then gives the lock to the first
-- waiter, or wakes that waiter. Also undoes an attempt whose outcome is not known.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid> of the hold, which is never used again
--   fence         int    its fencing token, written here if it is missing; 0 if a quorum of masters knows it
--   token_ms      ms     how long a fencing token is remembered at least
--   hand          flag   1: a waiter that takes grants is given the lock; 0: it is only woken
--   not_after_us  us     time on this master's clock after which no waiter is given the lock, in 16 digits
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
--   wake   to the same, if it does not; when readers have the lock, only if it is a reader
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
local last -- the token before, if hand_usual has just written a new one
if ended == 1 then
  -- The usual case ends here, before the other functions are defined: nobody waits, or the first waiter gets the lock.
  --#include freed share
  local kept = redis.call('EXISTS', lock, queue)
  if kept == 0 and fence == '0' then
    --#include freed tell
    return 'released ' .. now
  end
  -- The waiter's new token is larger than the fence, and is written in place of it.
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
  token_above(last, token, now_us, token_ms) -- no waiter got the new token; keep tokens above the overwritten one
end
if ended ~= 1 then
  ended = on_own('HDEL', lock, owner) -- again, to raise the error, unless the key is of another type
end
-- Even if there is no such hold: a master that has forgotten the token must learn it again.
if fence ~= '0' and tonumber(fence) > last_token(token) then
  remember(token, tonumber(fence), now_us, token_ms)
end
--#include freed first
if redis.call('EXISTS', queue) == 1 then
  --#include tell
  --#include queue
  --#include waiter
  --#include vote
  --#include hand_over
  --#include holder
  --#include wake_reader

  local waiter = waiter_of(owner)
  if on_own('ZREM', queue, waiter) == 1 then
    on_own('ZREM', waiters, waiter)
  end
  -- The lock may still be held: by readers, one of which may be the same owner, or by another program's field.
  local holder = holder_of(lock)
  if holder and is_reader(holder) then
    drop_overdue(queue, waiters, now_us)
    wake_reader(lock, queue, waiters, nil)
  elseif not holder then
    drop_overdue(queue, waiters, now_us)
    if hand == '1' and now_us <= tonumber(not_after_us)
      and not no_vote_until(master, incarnation, guard_ms, owner, now_us) then
      hand_over(lock, queue, waiters, token, owner, incarnation, now_us)
    else
      wake_first(lock, queue, waiters, nil)
    end
  end
end
--#include freed last
if ended == 1 then
  return 'released ' .. now
end
return 'absent ' .. now
