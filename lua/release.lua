-- Ends whatever this owner has here, a hold or a place in the queue, and passes
-- the turn on. Also the undo of an attempt whose outcome is not known.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
-- ARGV
--   owner     text   <client>:<uuid> of the hold, which is never used again
--   fence     int    its fencing token, written back where it is missing; 0 where no master can miss it
--   lease_ms  ms     for how long the token is remembered at least
-- RETURNS
--   released  now_us  the hold was here and has ended
--   absent    now_us  there was no such hold (any more)
-- WRITES
--   token     the lease and what the token is ahead of the clock
-- PUBLISHES
--   wake  to the first waiter that listens, when the lock is free
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more.

--#include clock
--#include digits
--#include remember
--#include on_hash

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local owner = ARGV[1]
local fence = ARGV[2]
local lease_ms = ARGV[3]

-- HDEL comes first: a master that is out of memory takes it, and then the rest.
local ended = on_hash('HDEL', lock, owner) == 1
-- Also where the hold is not, or no more: a master that has forgotten the token is to know it.
if fence ~= '0' and tonumber(fence) > tonumber(redis.call('GET', token) or 0) then
  remember(token, tonumber(fence), now_us, lease_ms)
end
if redis.call('EXISTS', queue) == 0 then
  return { ended and 'released' or 'absent', now_us }
end

--#include queue
--#include waiter

local waiter = waiter_of(owner)
redis.call('ZREM', queue, waiter)
redis.call('ZREM', waiters, waiter)
if redis.call('EXISTS', lock) == 0 then
  drop_overdue(queue, waiters, now_us)
  wake_first(lock, queue, nil)
end
return { ended and 'released' or 'absent', now_us }
