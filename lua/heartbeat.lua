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
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
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
--#include now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local client = ARGV[1]
local alive_ms = ARGV[2]
local queue_ms = ARGV[3]
local not_after_us = ARGV[4]

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return { 'void', tonumber(now) }
end
local holders = redis.pcall('HLEN', lock) == 1 and redis.call('HKEYS', lock)
local first = 5 -- of the arguments in pairs
local waiter = ARGV[first + 1]
if holders and #ARGV == first + 1 and waiter ~= string.match(holders[1], '^[^~]*') then
  -- The usual case (the lock is held, and one waiter of this client waits) ends here, unless a waiter is overdue.
  redis.call('ZADD', waiters, string.sub(now, 1, -4) + alive_ms, waiter)
  redis.call('ZADD', queue, ARGV[first], waiter) -- replaces a ticket from before the agreement
  redis.call('PEXPIRE', queue, queue_ms)
  redis.call('PEXPIRE', waiters, queue_ms)
  if redis.call('ZCOUNT', waiters, '-inf', string.sub(now, 1, -4)) == 0 then
    local left_ms, head = redis.call('PTTL', lock), redis.call('ZRANGE', queue, '0', '0')[1]
    return { 'tended', tonumber(now), left_ms == 0 and 1 or left_ms, '', head }
  end
end

--#include clock
--#include digits
--#include on_own
--#include holder
--#include tell
--#include queue
--#include waiter
--#include keep_places

local holder = holder_of(lock)
local grantee, head = keep_places(queue, waiters, first, { [holder and waiter_of(holder) or ''] = true }, alive_ms, queue_ms, now_us)
if holder then
  local left_ms = redis.call('PTTL', lock)
  -- In its last millisecond a lease has 0 ms left. Return 1, because 0 means that the lock is free.
  return { 'tended', now_us, left_ms == 0 and 1 or left_ms, grantee, head }
end
-- The reply names this client's own waiter, so its turn does not depend on Pub/Sub.
local told, is_open = wake_first(lock, queue, waiters, nil)
local turn = told or head
local mine = string.sub(turn, 1, #client + 1) == client .. ':'
return { 'tended', now_us, is_open and 1 or 0, mine and turn or '', head }
