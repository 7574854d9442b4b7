-- Takes the lock as a reader if no writer has it and it is the caller's turn; else waits in the
-- queue. A caller that is queued already keeps its place.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid>& of the hold that this may become, as for read_acquire; its waiter has the place
--   count         text   hold count to begin with; a note may follow, after a blank
--   lease_ms      ms     lease of the hold
--   fair          flag   1: a waiter that listens comes first
--   ticket        int    agreed; 0: this master's proposal; -T: that or T, the larger; -1: propose, and write nothing
--   alive_ms      ms     how long the waiter counts as alive without a heartbeat
--   queue_ms      ms     how long the queue outlives its last heartbeat
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   queued    now_us pttl_ms ahead holder ticket  the caller waits behind `ahead` others
--   proposed  now_us pttl_ms ahead holder ticket  it would, with this ticket, and has no place
--   granted   now_us token                        the hold is the caller's
--   void      now_us                              came too late, nothing was done
--   no_vote   now_us until_us                     this master may have forgotten leases until then
-- WRITES
--   lock      the latest lease
--   leases    the latest lease
--   queue     queue_ms
--   waiters   queue_ms
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   wake  to the first that listens, when it is another's turn
--   wake  after a grant, to the next, if that is a reader
-- REPEATABLE
--   A second arrival finds its ticket; or its hold, with a token of its own.

--#include time
--#include clock
--#include digits
--#include spare
--#include on_own
--#include lengthen
--#include remember
--#include just_now
--#include vote
--#include tell
--#include queue
--#include waiter
--#include leases
--#include readers
--#include wake_reader
--#include take_read
--#include place

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local leases = KEYS[5]
local master = KEYS[6]
local owner = ARGV[1]
local count = ARGV[2]
local lease_ms = ARGV[3]
local fair = ARGV[4]
local ticket = ARGV[5]
local alive_ms = ARGV[6]
local queue_ms = ARGV[7]
local not_after_us = ARGV[8]
local incarnation = ARGV[9]
local guard_ms = ARGV[10]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
local waiter = waiter_of(owner)

reap(lock, leases, now_us)
local agreed = tonumber(ticket)
if agreed > 0 and on_own('HEXISTS', lock, owner) ~= 1 then
  -- Before it is decided whose turn it is, and without a vote. See enqueue.
  place(queue, waiters, waiter, agreed, alive_ms, queue_ms, now_us)
end
local until_us, take_guard = no_vote_until(master, incarnation, guard_ms, owner, now_us)
if until_us then
  return { 'no_vote', now_us, until_us }
end
local given, holder = try_to_take(lock, queue, waiters, token, leases, owner, waiter, count, lease_ms, fair, now_us)
if given then
  if take_guard then
    take_guard()
  end
  return { 'granted', now_us, given }
end
local pttl_ms = holder and redis.call('PTTL', lock) or 0
holder = holder or ''

local is_proposed
agreed, is_proposed = find_place(lock, queue, waiters, waiter, ticket, alive_ms, queue_ms, now_us)
if is_proposed then
  return { 'proposed', now_us, pttl_ms, redis.call('ZCARD', queue), holder, agreed }
end
if take_guard then
  take_guard() -- needed for a place, too
end
return { 'queued', now_us, pttl_ms, redis.call('ZRANK', queue, waiter), holder, agreed }
