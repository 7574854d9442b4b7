-- Takes the lock as a reader if no writer has it and no other waiter's turn has come. Never queues.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid>& of this hold; if its owner is the writer, the writer's uuid follows the &
--   count         text   hold count to begin with; a note may follow, after a blank
--   lease_ms      ms     lease of the hold
--   token_ms      ms     how long the fencing token is remembered at least; more than the lease
--   fair          flag   1: a waiter that listens comes first
--   proposal      us     a fencing token for all of several masters to give, in 16 digits; 0: none
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   'granted now_us token'               the hold is the caller's
--   refused  now_us pttl_ms ahead holder  a writer has it, or it is another's turn (no holder), or not known whose
--   'void now_us'                        came too late, nothing was done
--   no_vote  now_us until_us             this master may have forgotten leases until then
-- WRITES
--   lock      the latest lease
--   leases    the latest lease
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   wake  to the first that listens, when it is another's turn
--   wake  after a grant, to the next, if that is a reader
-- REPEATABLE
--   A second arrival finds the hold its own, and gets a token of its own; the count is untouched.

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
local count = ARGV[2]
local lease_ms = ARGV[3]
local token_ms = ARGV[4]
local fair = ARGV[5]
local proposal = ARGV[6]
local not_after_us = ARGV[7]
local incarnation = ARGV[8]
local guard_ms = ARGV[9]

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return 'void ' .. now
end

--#include admit

local last -- the token before, if the hold has just been written
if redis.call('EXISTS', lock, queue, leases) == 0 then
  -- The usual case (the lock is free, and nobody waits) ends here, before the other functions are defined.
  if take_guard then
    take_guard()
  end
  redis.call('HSET', lock, owner, count)
  redis.call('PEXPIRE', lock, lease_ms)
  redis.call('ZADD', leases, string.sub(now, 1, -4) + lease_ms + 1, owner)
  redis.call('PEXPIRE', leases, lease_ms)
  last = redis.call('SET', token, new_token, 'PX', token_ms, 'GET')
  if not last or (#last == #new_token and last < new_token) then
    return 'granted ' .. now .. ' ' .. new_token
  end
end

--#include clock
--#include digits
--#include spare
--#include remember

if last then
  -- The token before was not smaller. See acquire.
  return 'granted ' .. now .. ' ' .. digits(token_above(last, token, tonumber(new_token), lease_ms))
end

--#include on_own
--#include lengthen
--#include tell
--#include queue
--#include waiter
--#include leases
--#include readers
--#include wake_reader
--#include take_read

reap(lock, leases, now_us)
local given, holder = try_to_take(lock, queue, waiters, token, leases, owner, waiter_of(owner), count, lease_ms, fair,
  now_us)
if given then
  if take_guard then
    take_guard()
  end
  return 'granted ' .. now .. ' ' .. digits(given)
end
-- This write, which changes nothing, makes a replica refuse the script. See acquire.
on_own('ZREM', queue, '')
return { 'refused', now_us, holder and redis.call('PTTL', lock) or 0, on_own('ZCARD', queue) or 0, holder or '' }
