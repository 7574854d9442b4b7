-- Ends the hold of this reader, and the place of its waiter. If the lock is free then, gives it to
-- the first waiter, or wakes that waiter. Also undoes an attempt whose outcome is not known, and
-- ends the hold of a writer whose owner reads on: of a longer lease of the writer nothing is left.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid>& of the hold, which is never used again; or the writer's name
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
--   lock      the latest lease, or the lease that a waiter may be given
--   leases    the latest lease
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   grant  to the first waiter that listens, if it takes grants, when the lock is free
--   wake   to the same, if it does not; when other readers have the lock, only if it is a reader
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more, or give it the lock while that is free.

--#include time
--#include now
--#include just_now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local leases = KEYS[5]
local master = KEYS[6]
local owner = ARGV[1]
local fence = ARGV[2]
local token_ms = ARGV[3]
local hand = ARGV[4]
local not_after_us = ARGV[5]
local incarnation = ARGV[6]
local guard_ms = ARGV[7]

-- HDEL is the first write: a master that is out of memory allows it, and after it the writes that follow.
local ended = redis.pcall('HDEL', lock, owner)
local is_gone = redis.pcall('ZREM', leases, owner)
if ended == 1 and is_gone == 1 and fence == '0' and redis.call('EXISTS', lock, queue) == 0 then
  return 'released ' .. now -- the usual case: no other reader has the lock, and nobody waits
end

--#include clock
--#include digits
--#include spare
--#include remember
--#include last_token
--#include on_own
--#include lengthen
--#include leases
--#include readers

if ended ~= 1 then
  ended = on_own('HDEL', lock, owner) -- again, to raise the error, unless the key is of another type
end
on_own('ZREM', leases, owner)
-- Even if there is no such hold: a master that has forgotten the token must learn it again.
if fence ~= '0' and tonumber(fence) > last_token(token) then
  remember(token, tonumber(fence), now_us, math.max(redis.call('PTTL', lock), tonumber(token_ms)))
end
reap(lock, leases, now_us)
local writer = writer_of(lock, leases)
if not writer then
  end_with_latest(lock, leases, now_us)
end
if redis.call('EXISTS', queue) == 1 then
  --#include tell
  --#include queue
  --#include waiter
  --#include vote
  --#include hand_over
  --#include wake_reader

  local waiter = waiter_of(owner)
  if on_own('ZREM', queue, waiter) == 1 then
    on_own('ZREM', waiters, waiter)
  end
  if not writer then
    drop_overdue(queue, waiters, now_us)
    if redis.call('EXISTS', lock) == 1 then
      wake_reader(lock, queue, waiters, nil)
    elseif hand == '1' and now_us <= tonumber(not_after_us)
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
