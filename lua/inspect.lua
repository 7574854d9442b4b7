-- Returns the holder of the lock, or the readers that have it, and the waiters. Changes nothing.
--
-- KEYS
--   lock      hash    the holds: <client>:<uuid> -> hold count; of readers, or of one writer
--   queue     zset    waiters by ticket
--   token     string  the last fencing token
--   leases    zset    readers by the time (ms) at which their leases end
-- ARGV
--   limit     int    how many waiters to name at most
-- RETURNS
--   held      now_us pttl_ms holder count token queue       a key of another type has no holder and count 0
--   noted     now_us pttl_ms holder count token note queue  the holder has a note
--   shared    now_us token holders queue                    readers have it; for each its name, value, and ms left
--   free      now_us token queue                            the lock has no holder; of each waiter its name and ticket
-- WRITES
--   none
-- PUBLISHES
--   none
-- REPEATABLE
--   It only reads.

--#include time
--#include clock
--#include digits
--#include on_own
--#include lengthen
--#include last_token
--#include leases
--#include readers

local lock = KEYS[1]
local queue = KEYS[2]
local token = KEYS[3]
local leases = KEYS[4]
local limit = ARGV[1]
local value_max = 220 -- bytes: a hold count, a blank and a note; another program's value may be longer

local function value_of(name)
  return string.sub(redis.call('HGET', lock, name), 1, value_max)
end

local last = last_token(token)
local queued = on_own('ZRANGE', queue, 0, limit - 1, 'WITHSCORES') or {}
local writer = writer_of(lock, leases)
if writer then
  local value, pttl_ms = writer ~= '' and value_of(writer) or '', redis.call('PTTL', lock)
  local count, note = string.match(value, '^(%d+) (.+)$')
  if note then
    return { 'noted', now_us, pttl_ms, writer, tonumber(count), last, note, queued }
  end
  return { 'held', now_us, pttl_ms, writer, tonumber(value) or 0, last, queued }
end
local view, readers = look(lock, leases, now_us), {}
for i, name in ipairs(view and view.names or {}) do
  local at = #readers
  local value = view.values[i]
  if value == 0 then -- no number, but a count and a note
    value = string.match(value_of(name), '^%d+ .+$') or 0
  end
  readers[at + 1], readers[at + 2], readers[at + 3] = name, value, left_ms(leases, name, now_us)
end
if #readers == 0 then
  local is_free = redis.call('EXISTS', lock) == 0
  return is_free and { 'free', now_us, last, queued } or { 'held', now_us, redis.call('PTTL', lock), '', 0, last, queued }
end
return { 'shared', now_us, last, readers, queued }
