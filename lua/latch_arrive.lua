-- Notes that a party has arrived at a latch. If so many have arrived that the latch is open, wakes all that wait.
--
-- KEYS
--   latch     hash    the parties that have arrived, until the latch is open; '' -> how many must
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   party         text   the party's name: a second arrival under this name counts no more
--   parties       int    how many must arrive
--   ttl_ms        ms     how long the arrivals are remembered from now on
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
-- RETURNS
--   arrived  now_us count    it has arrived; so many have in all
--   differs  now_us parties  others want so many parties, nothing was done
--   void     now_us          came too late, nothing was done
-- WRITES
--   latch     ttl_ms
-- PUBLISHES
--   wake  to all waiters, when the latch is open
-- REPEATABLE
--   A second arrival changes nothing but the time to live; it may wake the waiters once more.

--#include time
--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include tell

local latch = KEYS[1]
local waiters = KEYS[2]
local party = ARGV[1]
local parties = ARGV[2]
local ttl_ms = ARGV[3]
local not_after_us = ARGV[4]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
local others = redis.call('HGET', latch, '')
if others and others ~= parties then
  return { 'differs', now_us, tonumber(others) or 0 }
end
local count = redis.call('HLEN', latch) - 1
if count >= 0 and not others then
  return redis.error_reply('WRONGTYPE another program has written to ' .. latch)
end
if count < tonumber(parties) then -- an open latch keeps no more names
  redis.call('HSET', latch, '', parties, party, 1)
  count = redis.call('HLEN', latch) - 1
end
lengthen(latch, ttl_ms)
if count >= tonumber(parties) then
  local prefix, name = string.match(latch, '^([^{]*:){(.*)}')
  for _, waiter in ipairs(on_own('ZRANGEBYSCORE', waiters, digits(now_us / 1000), '+inf', 'LIMIT', 0, 1000) or {}) do
    local client, uuid = string.match(waiter, '^([!-9;-}]+):([!-9;-}]+)$')
    --#include channel of_waiter
    if client then
      tell(prefix, name, client, 'wake ' .. uuid .. ' ' .. name)
    end
  end
end
return { 'arrived', now_us, count }
