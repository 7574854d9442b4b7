-- Ends the hold of an attempt that too few other masters granted. Its waiter goes on waiting.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   owner         text   <client>:<uuid> of the attempt, which is never used again
--   ticket        int    the agreed ticket, with which the waiter gets its place back; 0 if it has none
--   alive_ms      ms     how long the waiter counts as alive without a heartbeat
--   queue_ms      ms     how long the queue outlives its last heartbeat
--   not_after_us  us     time on this master's clock after which no place is given back, in 16 digits
-- RETURNS
--   'released now_us'  the hold was here and has ended
--   'absent now_us'    there was no such hold (any more)
-- WRITES
--   queue     queue_ms
--   waiters   queue_ms
-- PUBLISHES
--   wake  to the first that listens and comes before the waiter, when the lock is free
-- REPEATABLE
--   A second arrival finds nothing, and leaves the waiter's place alone.

--#include time
--#include now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local owner = ARGV[1]
local ticket = ARGV[2]
local alive_ms = ARGV[3]
local queue_ms = ARGV[4]
local not_after_us = ARGV[5]
local waiter = string.match(owner, '^[^~]*')

local ended = redis.pcall('HDEL', lock, owner) == 1
--#include freed ended
if ended and ticket ~= '0' and (now <= not_after_us or tonumber(now) <= tonumber(not_after_us)) then
  -- The grant had taken the waiter out of the queue.
  redis.call('ZADD', queue, ticket, waiter)
  redis.call('ZADD', waiters, string.sub(now, 1, -4) + alive_ms, waiter)
  redis.call('PEXPIRE', queue, queue_ms)
  redis.call('PEXPIRE', waiters, queue_ms)
  local overdue = redis.call('ZCOUNT', waiters, '-inf', string.sub(now, 1, -4))
  if overdue == 0 and redis.call('ZRANGE', queue, '0', '0')[1] == waiter then
    return 'released ' .. now -- the usual case: the waiter is first, so no other one is woken
  end
end

--#include clock
--#include digits
--#include on_own

ended = ended or on_own('HDEL', lock, owner) == 1 -- again, to raise the error, unless the key is of another type
if redis.call('EXISTS', queue) == 1 and redis.call('EXISTS', lock) == 0 then
  --#include tell
  --#include queue

  drop_overdue(queue, waiters, now_us)
  wake_first(lock, queue, waiters, waiter)
end
if ended then
  return 'released ' .. now
end
return 'absent ' .. now
