-- Takes the lock if it is free and the caller's turn; else waits in the queue.
-- A caller that is queued already keeps its place.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner         text   <client>:<uuid> of the hold that this may become; its waiter has the place in the queue
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
--   'queued now_us pttl_ms ahead holder ticket'    the caller waits behind `ahead` others
--   'proposed now_us pttl_ms ahead holder ticket'  it would, with this ticket, and has no place
--   granted now_us token                           the hold is the caller's
--   void now_us                                    came too late, nothing was done
--   no_vote now_us until_us                        this master may have forgotten leases until then
-- WRITES
--   lock      lease_ms
--   queue     queue_ms
--   waiters   queue_ms
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   wake  to the first that listens, when the lock is free and it is another's turn
-- REPEATABLE
--   A second arrival finds its ticket, or its hold.

--#include time
--#include now
--#include just_now

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local master = KEYS[5]
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

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return { 'void', tonumber(now) }
end

--#include has_vote

if has_vote and redis.pcall('HLEN', lock) == 1 then
  -- The usual case (the lock is held, and the caller is new) ends here, before the other functions are defined.
  local holder = redis.call('HKEYS', lock)[1]
  local pttl_ms = redis.call('PTTL', lock)
  local waiter = string.match(owner, '^[^~]*')
  local chosen = ticket
  if ticket == '0' or string.byte(ticket) == 45 then -- no ticket is agreed: 0, or a minus at the beginning
    local theirs = string.sub(ticket, 2)
    chosen = #theirs == #now and theirs > now and theirs or now
    local given = string.match(holder, '~%x+%.(%d+)$') -- the ticket of the holder, if it was a waiter; see below
    if (given and not (#given == #now and given < chosen)) or redis.pcall('ZCOUNT', queue, chosen, '+inf') ~= 0 then
      chosen = nil
    end
  end
  -- A number with more than 14 digits is not written as one.
  if chosen and holder ~= owner and pttl_ms < 1e14 then
    if ticket ~= '-1' then
      redis.call('ZADD', waiters, string.sub(now, 1, -4) + alive_ms, waiter)
      redis.call('PEXPIRE', waiters, queue_ms)
      if redis.call('ZADD', queue, 'NX', chosen, waiter) == 1 then
        redis.call('PEXPIRE', queue, queue_ms) -- the other waiters may have died, and send no heartbeats
        local ahead = redis.call('ZRANK', queue, waiter)
        return 'queued ' .. now .. ' ' .. pttl_ms .. ' ' .. ahead .. ' ' .. holder .. ' ' .. chosen
      end
    elseif not redis.call('ZSCORE', queue, waiter) then
      local ahead = redis.call('ZCARD', queue)
      return 'proposed ' .. now .. ' ' .. pttl_ms .. ' ' .. ahead .. ' ' .. holder .. ' ' .. chosen
    end
  end
end

--#include clock
--#include digits
--#include spare
--#include on_own
--#include holder
--#include lengthen
--#include remember
--#include vote
--#include tell
--#include queue
--#include waiter
--#include grant
--#include take
--#include place

local waiter = waiter_of(owner)

local agreed = tonumber(ticket)
if agreed > 0 and holder_of(lock) ~= owner then
  -- Write the ticket before deciding whose turn it is, which goes by tickets: else a second arrival of this request
  -- would find the ticket, and might get a grant that the first did not. A place needs no vote: the waiters must be in
  -- order when this master votes again.
  place(queue, waiters, waiter, agreed, alive_ms, queue_ms, now_us)
end
local until_us, take_guard = no_vote_until(master, incarnation, guard_ms, owner, now_us)
if until_us then
  return { 'no_vote', now_us, until_us }
end
local granted_token, holder = try_to_take(lock, queue, waiters, token, owner, waiter, count, lease_ms, fair, now_us)
if granted_token then
  if take_guard then
    take_guard()
  end
  return { 'granted', now_us, granted_token }
end
local pttl_ms = digits(holder and redis.call('PTTL', lock) or 0)
holder = holder or ''

local is_proposed
agreed, is_proposed = find_place(lock, queue, waiters, waiter, ticket, alive_ms, queue_ms, now_us)
if is_proposed then
  local ahead = redis.call('ZCARD', queue)
  return 'proposed ' .. now .. ' ' .. pttl_ms .. ' ' .. ahead .. ' ' .. holder .. ' ' .. digits(agreed)
end
if take_guard then
  take_guard() -- needed for a place, too: a releaser may give this waiter the lock
end
local ahead = redis.call('ZRANK', queue, waiter)
return 'queued ' .. now .. ' ' .. pttl_ms .. ' ' .. ahead .. ' ' .. holder .. ' ' .. digits(agreed)
