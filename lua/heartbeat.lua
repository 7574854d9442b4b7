-- The heartbeat of one client for all its waiters on one lock. It restores the places
-- that this master has lost, removes overdue waiters, and repeats a lost wake-up.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   client        text   the client whose waiters these are
--   alive_ms      ms     how long they count as alive from now on
--   queue_ms      ms     how long the queue outlives its last heartbeat
--   not_after_us  us     time on this master's clock after which this call does nothing
--   ...           pairs  ticket and <client>:<uuid> of each waiter
-- RETURNS
--   tended    now_us pttl_ms turn head  the lease left, or 1: look again; which of these must look; the first
--   void      now_us                    came too late, nothing was done
-- WRITES
--   queue     queue_ms
--   waiters   queue_ms
-- PUBLISHES
--   wake  to the first waiter that listens, when the lock is free
-- REPEATABLE
--   A second arrival finds all tickets in their places.

--#include time
--#include clock
--#include digits
--#include on_own
--#include holder
--#include counts
--#include queue
--#include waiter

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local client = ARGV[1]
local alive_ms = ARGV[2]
local queue_ms = ARGV[3]
local not_after_us = ARGV[4]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
local holder = holder_of(lock)
local alive_until_ms = digits(now_us / 1000 + alive_ms)
local granted_waiter, grantee = holder and waiter_of(holder), ''
local deadlines, places = {}, {}
for i = 5, #ARGV, 2 do
  local waiter = ARGV[i + 1]
  if waiter == granted_waiter then
    grantee = waiter -- It has the lock, though it may not know yet.
  else
    local last = #places
    deadlines[last + 1], deadlines[last + 2] = alive_until_ms, waiter
    places[last + 1], places[last + 2] = ARGV[i], waiter
  end
end
if #places > 0 then -- two commands, however many wait; the places come last, so that none is without a deadline
  redis.call('ZADD', waiters, unpack(deadlines))
  redis.call('ZADD', queue, unpack(places)) -- in place of tickets that were only proposed
end
redis.call('PEXPIRE', queue, queue_ms)
redis.call('PEXPIRE', waiters, queue_ms)
drop_overdue(queue, waiters, now_us)

local head = redis.call('ZRANGE', queue, 0, 0)[1] or ''
if holder then
  local left_ms = redis.call('PTTL', lock)
  -- In its last millisecond a lease has 0 ms left, which would read as no lease: nobody would look when it ends.
  return { 'tended', now_us, left_ms == 0 and 1 or left_ms, grantee, head }
end
-- The reply tells this client's own waiter: it does not depend on Pub/Sub.
local first, is_open = wake_first(lock, queue, waiters, nil)
local turn = first or head
local mine = string.sub(turn, 1, #client + 1) == client .. ':'
return { 'tended', now_us, is_open and 1 or 0, mine and turn or '', head }
