-- Gives up a place in the queue, a writer's or a reader's, never a hold, and passes the turn on.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   owner     text   <client>:<uuid> of the wait
-- RETURNS
--   'left now_us'    the place was there and is given up
--   'absent now_us'  there was no such place
-- WRITES
--   none
-- PUBLISHES
--   wake  to the first waiter that listens, when the lock is free
--   wake  to the same, when readers have the lock, if it is a reader
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more.

--#include time
--#include now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local owner = ARGV[1]

local left = redis.pcall('ZREM', queue, owner) == 1
if left and redis.pcall('ZREM', waiters, owner) == 1 and redis.call('EXISTS', queue) == 0 then
  return 'left ' .. now -- the usual case: nobody else waits
end

--#include clock
--#include digits
--#include on_own
--#include holder
--#include tell
--#include queue
--#include wake_reader

left = left or on_own('ZREM', queue, owner) == 1 -- again, to raise the error, unless the key is of another type
on_own('ZREM', waiters, owner)
local holder = holder_of(lock)
if not holder or is_reader(holder) then
  drop_overdue(queue, waiters, now_us)
  local _ = (holder and wake_reader or wake_first)(lock, queue, waiters, nil)
end
if left then
  return 'left ' .. now
end
return 'absent ' .. now
