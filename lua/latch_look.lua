-- Returns which parties have arrived at a latch. Has a waiter, if any, woken when the latch opens.
--
-- KEYS
--   latch     hash    the parties that have arrived; '' -> how many must
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   waiter    text   <client>:<uuid> of the waiter; empty: only look, and write nothing
--   alive_ms  ms     how long the waiter counts as alive without another look
--   most      int    how many parties to name at most
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

if waiter ~= '' then
  local overdue = on_own('ZRANGEBYSCORE', waiters, '-inf', digits(now_us / 1000), 'LIMIT', 0, 1000)
  if overdue and #overdue > 0 then
    redis.call('ZREM', waiters, unpack(overdue))
  end
  redis.call('ZADD', waiters, digits(now_us / 1000 + alive_ms), waiter)
  redis.call('PEXPIRE', waiters, alive_ms)
end
local fields = redis.call('HLEN', latch)
local parties, members = redis.call('HGET', latch, ''), {}
if most ~= '0' and fields <= 2048 then
  for _, name in ipairs(redis.call('HKEYS', latch)) do
    if name ~= '' and #members < tonumber(most) then
      members[#members + 1] = name
    end
  end
end
return { 'seen', now_us, parties and fields - 1 or 0, tonumber(parties or 0) or 0, members }
