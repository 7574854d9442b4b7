-- Returns which parties have arrived at a latch. Has a waiter, if any, woken when the latch opens.
--
-- KEYS
--   latch     hash    the parties that have arrived, until the latch is open; '' -> how many must
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   waiter    text   <client>:<uuid> of the waiter; empty: only look, and write nothing
--   alive_ms  ms     how long the waiter counts as alive without another look
--   most      int    names none of the parties if there are more than this
-- RETURNS
--   seen      now_us count parties members  so many have arrived; how many must, 0 if none has; the names
-- WRITES
--   waiters   alive_ms
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival has the waiter count as alive for longer.

--#include time
--#include clock
--#include digits
--#include on_own

local latch = KEYS[1]
local waiters = KEYS[2]
local waiter = ARGV[1]
local alive_ms = ARGV[2]
local most = ARGV[3]

local parties = redis.call('HGET', latch, '')
local count, members = parties and redis.call('HLEN', latch) - 1 or 0, {}
if count > 0 and count <= tonumber(most) then
  for _, name in ipairs(redis.call('HKEYS', latch)) do
    if name ~= '' then
      members[#members + 1] = name
    end
  end
end
-- Without a place for waiters, because another program has written to the key, the waiter looks again by itself.
local overdue = waiter ~= '' and on_own('ZRANGEBYSCORE', waiters, '-inf', digits(now_us / 1000), 'LIMIT', 0, 1000)
if overdue then
  redis.call('PEXPIRE', waiters, alive_ms) -- first: a master that is out of memory allows this, and then the others
  if #overdue > 0 then
    redis.call('ZREM', waiters, unpack(overdue))
  end
  redis.call('ZADD', waiters, digits(now_us / 1000 + alive_ms), waiter)
  redis.call('PEXPIRE', waiters, alive_ms)
end
return { 'seen', now_us, count, tonumber(parties or 0) or 0, members }
