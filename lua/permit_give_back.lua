-- Ends the permits of an attempt that too few other masters granted. Its waiter goes on waiting.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   leases    zset    owners by the time (ms) at which their leases end
--   limit     string  an operator's limit, in place of that in the names
-- ARGV
--   owner         text   <client>:<uuid>#<permits>/<limit> of the attempt, which is never used again
--   ticket        int    the agreed ticket, with which the waiter gets its place back; 0 if it has none
--   alive_ms      ms     how long the waiter counts as alive without a heartbeat
--   queue_ms      ms     how long the queue outlives its last heartbeat
--   not_after_us  us     time on this master's clock after which no place is given back, in 16 digits
-- RETURNS
--   'released now_us'  the permits were here and have ended
--   'absent now_us'    there was no such hold (any more)
-- WRITES
--   queue     queue_ms
--   waiters   queue_ms
-- PUBLISHES
--   wake  to the first that listens and comes before the waiter, when permits are free
-- REPEATABLE
--   A second arrival finds nothing, and leaves the waiter's place alone.

--#include time
--#include now

local permits = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local leases = KEYS[4]
local limit = KEYS[5]
local owner = ARGV[1]
local ticket = ARGV[2]
local alive_ms = ARGV[3]
local queue_ms = ARGV[4]
local not_after_us = ARGV[5]
local waiter = string.match(owner, '^[^~]*')

local ended = redis.pcall('HDEL', permits, owner) == 1
redis.pcall('ZREM', leases, owner)
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

ended = ended or on_own('HDEL', permits, owner) == 1 -- again, to raise the error, unless the key is of another type
on_own('ZREM', leases, owner)
if redis.call('EXISTS', queue) == 1 then
  --#include lengthen
  --#include tell
  --#include queue
  --#include wanted
  --#include leases
  --#include fit
  --#include pass_on

  reap(permits, leases, now_us)
  local view = look(permits, leases, now_us)
  if view then
    drop_overdue(queue, waiters, now_us)
    pass_on(permits, queue, waiters, limit, view.used, waiter)
  end
end
if ended then
  return 'released ' .. now
end
return 'absent ' .. now
