-- Ends the hold of this owner, and the place of its waiter. Keeps the lock taken for a while: the
-- field gets another name, which no owner has, so that late requests of the hold find nothing.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
-- ARGV
--   owner     text   <client>:<uuid> of the hold, which is never used again
--   rest_ms   ms     how long the lock stays taken from now on
--   fence     int    the hold's fencing token, written here if it is missing; 0 if a quorum of masters knows it
--   token_ms  ms     how long a fencing token is remembered at least; more than the lease and the rest
-- RETURNS
--   'released now_us'  the hold was here and has ended; the lock rests
--   'absent now_us'    there was no such hold (any more)
-- WRITES
--   lock      rest_ms
--   token     the lease and what the token is ahead of the clock
-- PUBLISHES
--   wake  to the first waiter that listens, which then learns when the rest ends
-- REPEATABLE
--   A second arrival finds nothing, and leaves the rest as it is.

--#include time
--#include now
--#include clock
--#include digits
--#include spare
--#include on_own
--#include lengthen
--#include remember
--#include last_token
--#include know_token
--#include tell
--#include queue
--#include waiter

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local owner = ARGV[1]
local rest_ms = ARGV[2]
local fence = ARGV[3]
local token_ms = ARGV[4]

-- HDEL comes first: a master that is out of memory allows it, and after it the writes that follow.
local ended = on_own('HDEL', lock, owner) == 1
if ended then
  local is_alone = redis.call('EXISTS', lock) == 0
  redis.call('HSET', lock, '~' .. owner, '0')
  if is_alone then
    redis.call('PEXPIRE', lock, rest_ms) -- shortens no lease: the hold has ended
  else
    lengthen(lock, rest_ms) -- another program has fields here
  end
end
-- Even if there is no such hold: a master that has forgotten the token must learn it again.
if fence ~= '0' then
  know_token(token, fence, now_us, token_ms, token_ms)
else
  lengthen(token, token_ms)
end
if redis.call('EXISTS', queue) == 1 then
  local waiter = waiter_of(owner)
  if on_own('ZREM', queue, waiter) == 1 then
    on_own('ZREM', waiters, waiter)
  end
  if ended or redis.call('EXISTS', lock) == 0 then
    drop_overdue(queue, waiters, now_us)
    wake_first(lock, queue, waiters, nil)
  end
end
if ended then
  return 'released ' .. now
end
return 'absent ' .. now
