-- Renews the lease of a hold that is here. Never creates one, never shortens it.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   token     string  the last fencing token
-- ARGV
--   owner         text   <client>:<uuid> of the hold
--   lease_ms      ms     the lease to have from now on
--   token_ms      ms     how long the token is remembered at least; more than the lease
--   not_after_us  us     time on this master's clock after which this call does nothing, in 16 digits
--   ...           text   the hold's note, if it may be missing here: a releaser gave the hold, and did not know it
-- RETURNS
--   'extended now_us'  the lease lasts at least lease_ms from now
--   'absent now_us'    there is no such hold (any more)
--   'void now_us'      came too late, nothing was done
-- WRITES
--   lock      lease_ms
--   token     token_ms
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival extends the same hold again.

--#include time
--#include now

local lock = KEYS[1]
local token = KEYS[2]
local owner = ARGV[1]
local lease_ms = ARGV[2]
local token_ms = ARGV[3]
local not_after_us = ARGV[4]
local behind = 5 -- of the arguments, where there may be a note
local note = ARGV[behind]

if now > not_after_us and tonumber(now) > tonumber(not_after_us) then
  return 'void ' .. now
end
if not note and redis.pcall('HEXISTS', lock, owner) == 1
  and redis.call('PTTL', lock) <= tonumber(lease_ms) and redis.call('PTTL', token) <= tonumber(token_ms) then
  redis.call('PEXPIRE', lock, lease_ms)
  redis.call('PEXPIRE', token, token_ms)
  return 'extended ' .. now
end

--#include on_own
--#include mine
--#include lengthen

if not is_mine(lock, owner) then
  return 'absent ' .. now
end
lengthen(lock, lease_ms)
lengthen(token, token_ms)
if note then
  local value = redis.call('HGET', lock, owner)
  if not string.find(value, ' ', 1, true) then
    redis.call('HSET', lock, owner, value .. ' ' .. note)
  end
end
return 'extended ' .. now
