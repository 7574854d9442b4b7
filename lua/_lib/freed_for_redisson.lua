-- Provides what `freed` provides, for clients whose locks are shared with Redisson (Java).
--
-- A waiter of Redisson's RLock listens on a channel of the lock's key. That of an RFairLock
-- listens on one of its own, and only the first in Redisson's own queue may take the lock.
-- Redisson reads the message as a number, so 00 is its 0, which wakes a waiter. Clients of
-- relock listen on the first channel as well, and know by the second 0 that the message is
-- relock's. A refused message is no error, as in `tell`.
--
--#piece share
-- While relock's waiters give the lock to each other, it is never free, and no waiter of Redisson
-- gets it. So one release in eight, by the clock, gives it to nobody.
if hand == '1' and tonumber(now) % 8 == 0 then
  hand = '0'
end
--#end
--#piece tell
local redisson = 'redisson_lock__channel:' .. lock
redis.pcall('PUBLISH', redisson, '00')
local fair = redis.pcall('LINDEX', 'redisson_lock_queue:' .. lock, '0')
if type(fair) == 'string' then
  redis.pcall('PUBLISH', redisson .. ':' .. fair, '00')
end
--#end
--#piece first
if ended == 1 and hand ~= '1' and redis.call('EXISTS', lock) == 0 then
  --#include freed_for_redisson tell
end
--#end
--#piece last
if ended == 1 and hand == '1' and redis.call('EXISTS', lock) == 0 then
  --#include freed_for_redisson tell
end
--#end
--#piece ended
if ended and redis.call('EXISTS', lock) == 0 then
  --#include freed_for_redisson tell
end
--#end
