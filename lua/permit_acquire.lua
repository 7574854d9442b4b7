-- Takes permits of a semaphore if they fit and no other waiter's turn has come. Never queues.
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
--   owner         text   <client>:<uuid>#<permits>/<limit> of this hold
--   slot          int    the slot to take, if it is free; -1: the lowest free one, and for more than one permit
--   lease_ms      ms     lease of the hold
--   token_ms      ms     how long the fencing token is remembered at least; more than the lease
--   fair          flag   1: a waiter that listens comes first
--   proposal      us     a fencing token for all of several masters to give, in 16 digits; 0: none
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   'granted now_us token slot'                 the permits are the caller's; slot -1 for more than one
--   refused  now_us pttl_ms ahead holder free   they do not fit, or another's turn (pttl 0); the free slots
--   'void now_us'                               came too late, nothing was done
--   no_vote  now_us until_us                    this master may have forgotten leases until then
-- WRITES
--   permits   the latest lease
--   leases    the latest lease
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   wake  to the first that listens, when permits are free and it is another's turn
-- REPEATABLE
--   A second arrival finds the permits its own: the same slot, and a token of its own.

--#include time
--#include now
--#include just_now

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
local token_ms = ARGV[4]
local fair = ARGV[5]
local proposal = ARGV[6]
local not_after_us = ARGV[7]
local incarnation = ARGV[8]
local guard_ms = ARGV[9]

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return 'void ' .. now
end

--#include admit

local last -- the token before, if the permit has just been written
local most = string.match(owner, '^[^:]*:[^#~]*#1/(%d+)') -- the limit, for one permit
if most and slot + 1 <= tonumber(most) and redis.call('EXISTS', permits, queue, limit, leases) == 0 then
  -- The usual case (nobody has a permit, and nobody waits) ends here, before the other functions are defined.
  if take_guard then
    take_guard()
  end
  if slot == '-1' then
    slot = '0'
  end
  redis.call('HSET', permits, owner, slot)
  redis.call('PEXPIRE', permits, lease_ms)
  redis.call('ZADD', leases, string.sub(now, 1, -4) + lease_ms + 1, owner)
  redis.call('PEXPIRE', leases, lease_ms)
  last = redis.call('SET', token, new_token, 'PX', token_ms, 'GET')
  if not last or (#last == #new_token and last < new_token) then
    return 'granted ' .. now .. ' ' .. new_token .. ' ' .. slot
  end
end

--#include clock
--#include digits
--#include spare
--#include remember

if last then
  -- The token before was not smaller. See acquire.
  return 'granted ' .. now .. ' ' .. digits(token_above(last, token, tonumber(new_token), lease_ms)) .. ' ' .. slot
end

--#include on_own
--#include lengthen
--#include tell
--#include queue
--#include waiter
--#include wanted
--#include leases
--#include fit
--#include refusal
--#include pass_on
--#include take_permit

slot = tonumber(slot)
local n, cap = wanted_of(owner)
cap = cap_of(limit, cap or 0)
n = n or 1
reap(permits, leases, now_us)
local view, foreign = look(permits, leases, now_us)
local own -- a hold that the caller's waiter has already
if view then
  local given, value = try_to_take(permits, queue, waiters, token, leases, limit, view, owner, waiter_of(owner), n, cap,
    slot, lease_ms, fair, now_us)
  if given then
    if take_guard then
      take_guard()
    end
    return 'granted ' .. now .. ' ' .. digits(given) .. ' ' .. math.max(value, -1)
  end
  own = value
end
-- This write, which changes nothing, makes a replica refuse the script. See acquire.
on_own('ZREM', queue, '')
local pttl_ms, holder, free = refusal(view, foreign, own, leases, limit, n, cap, slot, now_us)
return { 'refused', now_us, pttl_ms, on_own('ZCARD', queue) or 0, holder, free }
