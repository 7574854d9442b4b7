-- Gives up a place in the queue of a semaphore, never permits, and passes the turn on.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   leases    zset    owners by the time (ms) at which their leases end
--   limit     string  an operator's limit, in place of that in the names
-- ARGV
--   owner  text   <client>:<uuid>#<permits>/<limit> of the wait
-- RETURNS
--   'left now_us'    the place was there and is given up
--   'absent now_us'  there was no such place
-- WRITES
--   none
-- PUBLISHES
--   wake  to the first waiter that listens, when permits are free
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more.

--#include time
--#include now

local permits = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local leases = KEYS[4]
local limit = KEYS[5]
local owner = ARGV[1]

local left = redis.pcall('ZREM', queue, owner) == 1
if left and redis.pcall('ZREM', waiters, owner) == 1 and redis.call('EXISTS', queue) == 0 then
  return 'left ' .. now -- the usual case: nobody else waits
end

--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include tell
--#include queue
--#include wanted
--#include leases
--#include fit
--#include pass_on

left = left or on_own('ZREM', queue, owner) == 1 -- again, to raise the error, unless the key is of another type
on_own('ZREM', waiters, owner)
reap(permits, leases, now_us)
local view = look(permits, leases, now_us)
if view then
  drop_overdue(queue, waiters, now_us)
  pass_on(permits, queue, waiters, limit, view.used, nil)
end
if left then
  return 'left ' .. now
end
return 'absent ' .. now
