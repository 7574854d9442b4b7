-- Provides keep_places(...): restores the places of a client's waiters, whose tickets and names
-- are the arguments from `first` on, except where `has_hold` says that a waiter has its hold.
-- Returns such a waiter, or '', whose client may not know yet; and the first in the queue, or ''.
local function keep_places(queue, waiters, first, has_hold, alive_ms, queue_ms, now_us)
  local alive_until_ms, grantee = digits(now_us / 1000 + alive_ms), ''
  local deadlines, places = {}, {}
  for i = first, #ARGV, 2 do
    local waiter = ARGV[i + 1]
    if has_hold[waiter] then
      grantee = waiter
    else
      local last = #places
      deadlines[last + 1], deadlines[last + 2] = alive_until_ms, waiter
      places[last + 1], places[last + 2] = ARGV[i], waiter
    end
  end
  if #places > 0 then -- deadlines before places, so that no place is without a deadline
    redis.call('ZADD', waiters, unpack(deadlines))
    redis.call('ZADD', queue, unpack(places)) -- replaces tickets from before the agreement
  end
  redis.call('PEXPIRE', queue, queue_ms)
  redis.call('PEXPIRE', waiters, queue_ms)
  drop_overdue(queue, waiters, now_us)
  return grantee, redis.call('ZRANGE', queue, 0, 0)[1] or ''
end
