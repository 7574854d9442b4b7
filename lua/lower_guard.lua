-- Ends this master's restart guard, because an operator says that no lease is left which it may have forgotten.
--
-- KEYS
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   seen      text    <incarnation> <no_vote_until_us> <guard_ms> of the marker that the operator has seen
-- RETURNS
--   lowered   now_us  the master has a vote; its guard is 0 until a client with a larger one gets a hold or place
--   changed   now_us  the marker is another one by now, and is left alone
--   absent    now_us  there is no guard here
-- WRITES
--   master    none
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival finds another marker than the operator has seen.

--#include time
--#include clock

local master = KEYS[1]
local seen = ARGV[1]

local marker = master and redis.call('HMGET', master, 'incarnation', 'no_vote_until_us', 'guard_ms') or {}
if not marker[1] then
  return { 'absent', now_us }
end
if marker[1] .. ' ' .. (marker[2] or '') .. ' ' .. (marker[3] or '') ~= seen then
  return { 'changed', now_us }
end
redis.call('HDEL', master, 'set_by', 'set_us')
redis.call('HSET', master, 'no_vote_until_us', '0', 'guard_ms', '0')
return { 'lowered', now_us }
