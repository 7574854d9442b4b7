-- Takes permits of a semaphore if they fit and it is the caller's turn; else waits in the queue.
-- A caller that is queued already keeps its place.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   leases    zset    owners by the time (ms) at which their leases end
--   limit     string  an operator's limit, in place of that in the names
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid>#<permits>/<limit> of the hold that this may become; its waiter has the place
--   slot          int    the slot to take, if it is free; -1: the lowest free one, and for more than one permit
--   lease_ms      ms     lease of the hold
--   fair          flag   1: a waiter that listens comes first
--   ticket        int    agreed; 0: this master's proposal; -T: that or T, the larger; -1: propose, and write nothing
--   alive_ms      ms     how long the waiter counts as alive without a heartbeat
--   queue_ms      ms     how long the queue outlives its last heartbeat
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   queued    now_us pttl_ms ahead holder ticket free  the caller waits behind `ahead` others
--   proposed  now_us pttl_ms ahead holder ticket free  it would, with this ticket, and has no place
--   granted   now_us token slot                        the permits are the caller's; slot -1 for more than one
--   void      now_us                                   came too late, nothing was done
--   no_vote   now_us until_us                          this master may have forgotten leases until then
-- WRITES
--   permits   the latest lease
--   leases    the latest lease
--   queue     queue_ms
--   waiters   queue_ms
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   wake  to the first that listens, when permits are free and it is another's turn
-- REPEATABLE
--   A second arrival finds its ticket; or its permits, with a token of its own.

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
--#include wanted
--#include leases
--#include fit
--#include refusal
--#include pass_on
--#include take_permit
--#include place

local permits = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local leases = KEYS[5]
local limit = KEYS[6]
local master = KEYS[7]
local owner = ARGV[1]
local slot = ARGV[2]
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
slot = tonumber(slot)
local waiter = waiter_of(owner)
local n, cap = wanted_of(owner)
cap = cap_of(limit, cap or 0)
n = n or 1

reap(permits, leases, now_us)
local view, foreign = look(permits, leases, now_us)
local agreed = tonumber(ticket)
if agreed > 0 and not was_given(view, owner, waiter) then
  -- Before it is decided whose turn it is, and without a vote. See enqueue. A waiter that has just been given a permit
  -- gets no place: nobody would leave it, and those behind it would wait until it is overdue.
  place(queue, waiters, waiter, agreed, alive_ms, queue_ms, now_us)
end
local until_us, take_guard = no_vote_until(master, incarnation, guard_ms, owner, now_us)
if until_us then
  return { 'no_vote', now_us, until_us }
end
local own -- a hold that the caller's waiter has already
if view then
  local given, value = try_to_take(permits, queue, waiters, token, leases, limit, view, owner, waiter, n, cap, slot,
    lease_ms, fair, now_us)
  if given then
    if take_guard then
      take_guard()
    end
    return { 'granted', now_us, given, math.max(value, -1) }
  end
  own = value
end
local pttl_ms, holder, free = refusal(view, foreign, own, leases, limit, n, cap, slot, now_us)

local is_proposed
agreed, is_proposed = find_place(permits, queue, waiters, waiter, ticket, alive_ms, queue_ms, now_us)
if is_proposed then
  return { 'proposed', now_us, pttl_ms, redis.call('ZCARD', queue), holder, agreed, free }
end
if take_guard then
  take_guard() -- needed for a place, too: a releaser may give this waiter a permit
end
return { 'queued', now_us, pttl_ms, redis.call('ZRANK', queue, waiter) or 0, holder, agreed, free }
