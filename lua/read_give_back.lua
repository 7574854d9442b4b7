-- Ends the hold of a reader's attempt that did not get the lock on enough masters. The waiter keeps
-- its place in the queue, or returns to it.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   leases    zset    readers by the time (ms) at which their leases end
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
--   lock      the latest lease
--   leases    the latest lease
--   queue     queue_ms
--   waiters   queue_ms
-- PUBLISHES
--   wake  to the first before this waiter that listens, when the lock is free
--   wake  to the same, when other readers have the lock, if it is a reader
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more.

--#include time
--#include now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local leases = KEYS[4]
local owner = ARGV[1]
local ticket = ARGV[2]
local alive_ms = ARGV[3]
local queue_ms = ARGV[4]
local not_after_us = ARGV[5]
local waiter = string.match(owner, '^[^~]*')

local ended = redis.pcall('HDEL', lock, owner) == 1
redis.pcall('ZREM', leases, owner)
if ended and ticket ~= '0' and (now <= not_after_us or tonumber(now) <= tonumber(not_after_us)) then
  -- The grant had taken the waiter out of the queue.
  redis.call('ZADD', queue, ticket, waiter)
  redis.call('ZADD', waiters, string.sub(now, 1, -4) + alive_ms, waiter)
  redis.call('PEXPIRE', queue, queue_ms)
  redis.call('PEXPIRE', waiters, queue_ms)
end

--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include leases
--#include readers

ended = ended or on_own('HDEL', lock, owner) == 1 -- again, to raise the error, unless the key is of another type
on_own('ZREM', leases, owner)
reap(lock, leases, now_us)
if not writer_of(lock, leases) then
  end_with_latest(lock, leases, now_us)
  if redis.call('EXISTS', queue) == 1 then
    --#include tell
    --#include queue
    --#include wake_reader

    drop_overdue(queue, waiters, now_us)
    local is_free = redis.call('EXISTS', lock) == 0
    local _ = (is_free and wake_first or wake_reader)(lock, queue, waiters, waiter)
  end
end
if ended then
  return 'released ' .. now
end
return 'absent ' .. now
