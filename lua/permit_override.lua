-- Sets the limit of a semaphore for some time, in place of that in the code, for an operator.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   limit     string  an operator's limit, in place of that in the names
-- ARGV
--   cap           int    how many permits there are then; 0 lets nobody in
--   ttl_ms        ms     for how long; 0: the limit of the code holds again
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
-- RETURNS
--   set   now_us  the limit holds from now on; nobody loses a permit
--   void  now_us  came too late, nothing was done
-- WRITES
--   limit     ttl_ms
-- PUBLISHES
--   wake  to the first waiter that listens
-- REPEATABLE
--   A second arrival sets the same limit, for as long again.

--#include time
--#include clock
--#include digits
--#include on_own
--#include tell
--#include queue

local permits = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local limit = KEYS[4]
local cap = ARGV[1]
local ttl_ms = ARGV[2]
local not_after_us = ARGV[3]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
if ttl_ms == '0' then
  redis.call('DEL', limit)
else
  redis.call('SET', limit, cap, 'PX', ttl_ms)
end
drop_overdue(queue, waiters, now_us)
wake_first(permits, queue, waiters, nil)
return { 'set', now_us }
