-- Ends any hold of the lock, for an operator. The waiters keep their places.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
-- ARGV
--   fence         int    the largest token that a quorum knows, written here if it is missing; 0 on a lone master
--   lease_ms      ms     how long the token is remembered at least
--   not_after_us  us     time on this master's clock after which this call does nothing
-- RETURNS
--   released  now_us  the lock was held, and is free now
--   absent    now_us  the lock was free
--   void      now_us  came too late, nothing was done
-- WRITES
--   token     the lease and what the token is ahead of the clock
-- PUBLISHES
--   wake  to the first waiter that listens
-- REPEATABLE
--   Until its not-after time: a second arrival may end the next hold as well.

--#include time
--#include clock
--#include digits
--#include spare
--#include remember
--#include last_token
--#include on_own
--#include tell
--#include queue

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local leases = KEYS[5]
local fence = ARGV[1]
local lease_ms = ARGV[2]
local not_after_us = ARGV[3]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
local left_ms = math.max(0, redis.call('PTTL', lock))
local ended = redis.call('DEL', lock) == 1
redis.call('DEL', leases)
if ended then
  local last = math.max(tonumber(fence), last_token(token))
  if fence ~= '0' then
    -- Another master may have given a larger token, after the client's look, or while that master was silent. Such a
    -- token lies below the end of this lease, or a quorum knows it (is_token_safe). Add one millisecond, because a
    -- lease may begin in the middle of one.
    last = math.max(last, now_us + (left_ms + 1) * 1000)
  end
  remember(token, last, now_us, lease_ms)
end
--#include freed ended
drop_overdue(queue, waiters, now_us)
wake_first(lock, queue, waiters, nil)
return { ended and 'released' or 'absent', now_us }
