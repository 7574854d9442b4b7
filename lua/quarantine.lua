-- Takes this master's vote for the time of its guard, because a client saw the master's clock step.
--
-- KEYS
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   accused       text   the incarnation whose clock stepped; any other one is left alone
--   client        text   the client that saw it
--   not_after_us  us     time on this master's clock after which this call does nothing
--   incarnation   text   of the server behind the socket; with a guard, ?<us> follows: its last vote
--   guard_ms      ms     how long a master that may have forgotten leases has no vote; `-`: first contact; `+`: of others
-- RETURNS
--   quarantined  now_us until_us  it has no vote until then
--   absent       now_us           another incarnation is meant, there is no guard here, or it is a first contact
--   void         now_us           came too late, nothing was done
-- WRITES
--   master    none
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival lengthens the time without a vote.

--#include time
--#include clock
--#include digits

local master = KEYS[1]
local accused = ARGV[1]
local client = ARGV[2]
local not_after_us = ARGV[3]
local incarnation = ARGV[4]
local guard_ms = ARGV[5]

if now_us > tonumber(not_after_us) then
  return { 'void', now_us }
end
local named = string.match(incarnation, '^[^?!=]*')
local own_ms = tonumber(guard_ms)
if not master or accused ~= named or own_ms < 0 then
  return { 'absent', now_us }
end
local known_ms = tonumber(redis.call('HGET', master, 'guard_ms') or 0)
known_ms = known_ms and known_ms < 2 ^ 40 and known_ms or 0
local largest_ms = math.max(known_ms, own_ms)
local until_us = now_us + largest_ms * 1000
-- HDEL comes first: a master that is out of memory allows it, and after it HSET. Without a marker there, a release
-- could give the lock away.
redis.call('HDEL', master, 'no_vote_until_us')
redis.call('HSET', master, 'incarnation', named,
  'no_vote_until_us', digits(until_us), 'guard_ms', digits(largest_ms))
if own_ms > known_ms then
  redis.call('HSET', master, 'set_by', client, 'set_us', digits(now_us))
end
return { 'quarantined', now_us, until_us }
