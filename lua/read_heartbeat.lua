-- Keeps the places of one client's waiting readers, and says whose turn it is.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   leases    zset    readers by the time (ms) at which their leases end
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
--   wake  to the first that listens, when the lock is free, or readers have it and that one is a reader
-- REPEATABLE
--   A second arrival lengthens the places again.

--#include time
--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include tell
--#include queue
--#include waiter
--#include keep_places
--#include leases
--#include readers
--#include wake_reader

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local leases = KEYS[4]
local client = ARGV[1]
local alive_ms = ARGV[2]
local queue_ms = ARGV[3]
local not_after_us = ARGV[4]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
reap(lock, leases, now_us)
local writer = writer_of(lock, leases)
local has_hold = {}
if writer ~= '' and (on_own('HLEN', lock) or 0) <= holders_max then
  for _, name in ipairs(redis.call('HKEYS', lock)) do
    has_hold[waiter_of(name)] = true
  end
end
local grantee, head = keep_places(queue, waiters, 5, has_hold, alive_ms, queue_ms, now_us)
local pttl_ms = math.max(redis.call('PTTL', lock), 1)
if writer then
  return { 'tended', now_us, redis.call('PTTL', lock) < 0 and -1 or pttl_ms, grantee, head }
end
local is_free = redis.call('EXISTS', lock) == 0
-- The reply names this client's own waiter, so its turn does not depend on Pub/Sub.
local first, is_open = (is_free and wake_first or wake_reader)(lock, queue, waiters, nil)
local turn = first or head
local gets_in = is_free or string.find(turn, '&', 1, true)
local is_mine = gets_in and string.sub(turn, 1, #client + 1) == client .. ':'
return { 'tended', now_us, is_open and 1 or gets_in and 0 or pttl_ms, grantee ~= '' and grantee or is_mine and turn or '',
  head }
