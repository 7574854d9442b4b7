-- The heartbeat of one client for all its waiters on one semaphore. It restores the places
-- that this master has lost, removes overdue waiters, and repeats a lost wake-up.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   leases    zset    owners by the time (ms) at which their leases end
--   limit     string  an operator's limit, in place of that in the names
-- ARGV
--   client        text   the client whose waiters these are
--   alive_ms      ms     how long they count as alive from now on
--   queue_ms      ms     how long the queue outlives its last heartbeat
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   ...           pairs  ticket and <client>:<uuid>#<permits>/<limit> of each waiter
-- RETURNS
--   tended    now_us pttl_ms turn head  how long until the first fits, or 1: look again; which must look; the first
--   void      now_us                    came too late, nothing was done
-- WRITES
--   queue     queue_ms
--   waiters   queue_ms
-- PUBLISHES
--   wake  to the first waiter that listens, when permits are free
-- REPEATABLE
--   A second arrival finds all tickets in their places.

--#include time
--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include tell
--#include queue
--#include waiter
--#include keep_places
--#include wanted
--#include leases
--#include fit
--#include pass_on

local permits = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local leases = KEYS[4]
local limit = KEYS[5]
local client = ARGV[1]
local alive_ms = ARGV[2]
local queue_ms = ARGV[3]
local not_after_us = ARGV[4]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
reap(permits, leases, now_us)
local view, foreign = look(permits, leases, now_us)
local has_permit = {}
for _, name in ipairs(view and view.names or {}) do
  has_permit[waiter_of(name)] = true
end
local grantee, head = keep_places(queue, waiters, 5, has_permit, alive_ms, queue_ms, now_us)
if not view then
  return { 'tended', now_us, redis.call('PTTL', foreign), '', head }
end
-- Returns how long until the permits of this waiter fit; 0 if they fit now.
local function until_fit(waiter)
  local n, own = wanted_of(waiter)
  return wait_ms(view, leases, limit, n or 1, cap_of(limit, own or math.huge), now_us)
end
local pttl_ms = until_fit(head)
-- The reply names this client's own waiter, so its turn does not depend on Pub/Sub.
local told, is_open = pass_on(permits, queue, waiters, limit, view.used, nil)
local turn = told or head
if grantee ~= '' then
  turn = grantee
elseif string.sub(turn, 1, #client + 1) ~= client .. ':' or until_fit(turn) ~= 0 then
  turn = ''
end
return { 'tended', now_us, is_open and pttl_ms == 0 and 1 or pttl_ms, turn, head }
