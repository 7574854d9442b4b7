-- Returns the holder of the lock, and the waiters. Changes nothing.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   token     string  the last fencing token
-- ARGV
--   limit     int    how many waiters to name at most
-- RETURNS
--   held      now_us pttl_ms holder count token queue  a key of another type has no holder and count 0
--   free      now_us token queue                       the lock has no holder
-- WRITES
--   none
-- PUBLISHES
--   none
-- REPEATABLE
--   It only reads.

--#include time
--#include clock
--#include on_own
--#include holder
--#include last_token

local lock = KEYS[1]
local queue = KEYS[2]
local token = KEYS[3]
local limit = ARGV[1]

local last = last_token(token)
local queued = on_own('ZRANGE', queue, 0, limit - 1) or {}
local holder = holder_of(lock)
if not holder then
  return { 'free', now_us, last, queued }
end
local count = holder ~= '' and tonumber(redis.call('HGET', lock, holder)) or 0
return { 'held', now_us, redis.call('PTTL', lock), holder, count or 0, last, queued }
