-- Returns the owners of permits, and the waiters. Changes nothing.
--
-- KEYS
--   permits   hash    owner: <client>:<uuid> -> its slot, or -n for n > 1 permits
--   queue     zset    waiters by ticket
--   token     string  the last fencing token
--   leases    zset    owners by the time (ms) at which their leases end
--   limit     string  an operator's limit, in place of that in the names
-- ARGV
--   limit  int    how many waiters to name at most
-- RETURNS
--   info  now_us override token holders queue  the operator's limit or -1; owners' names, values, ms left; waiters' names, tickets
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
--#include fit

local permits = KEYS[1]
local queue = KEYS[2]
local token = KEYS[3]
local leases = KEYS[4]
local limit = KEYS[5]

local override = cap_of(limit, -1)
local view = look(permits, leases, now_us) or { names = {} }
local holders = {}
for i, name in ipairs(view.names) do
  local last = #holders
  holders[last + 1], holders[last + 2] = name, view.values[i]
  holders[last + 3] = left_ms(leases, name, now_us)
end
local limit = ARGV[1]
local queued = on_own('ZRANGE', queue, 0, limit - 1, 'WITHSCORES') or {}
return { 'info', now_us, override, last_token(token), holders, queued }
