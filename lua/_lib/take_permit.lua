-- Provides was_given(view, owner, waiter): whether the caller has its hold already, or a releaser
-- has given its waiter one, whose name ends with its ticket and its slot. An earlier attempt's
-- name ends with the ticket, and such a hold is about to be given back.
local function was_given(view, owner, waiter)
  for _, name in ipairs(view and view.names or {}) do
    if name == owner or string.match(name, '^(.*)~%x+%.%d+%.%d+$') == waiter then
      return true
    end
  end
  return false
end

-- Provides try_to_take(...): gives the caller its permits if they fit and it is the caller's
-- turn, and wakes the next waiter if more are free. Returns the fencing token, and the value of
-- the field; nil if the permits do not fit, or other waiters come first, or may.
--
-- A waiter has one hold at most. If it has one under another name, which is an earlier attempt,
-- or what a releaser gave while its message was lost, this returns nil and that name.
local function try_to_take(permits, queue, waiters, token_key, leases, limit, view, owner, waiter, n, cap, slot,
  lease_ms, fair, now_us)
  local own
  for i, name in ipairs(view.names) do
    if name == owner then
      -- A repeated request: the first one was granted, its reply was lost. The last token may be another owner's.
      keep_lease(permits, leases, owner, lease_ms, now_us)
      return next_token(token_key, now_us, latest_ms(permits, lease_ms)), view.values[i]
    elseif waiter_of(name) == waiter then
      own = name
    end
  end
  if own then
    return nil, own
  end
  local value = value_for(view, n, cap, slot)
  if not value then
    return nil
  end
  drop_overdue(queue, waiters, now_us)
  if fair == '1' then
    local first, is_open = wake_first(permits, queue, waiters, waiter)
    if first or is_open then
      return nil
    end
  end
  redis.call('HSET', permits, owner, value)
  keep_lease(permits, leases, owner, lease_ms, now_us)
  local token = next_token(token_key, now_us, latest_ms(permits, lease_ms))
  on_own('ZREM', queue, waiter)
  on_own('ZREM', waiters, waiter)
  pass_on(permits, queue, waiters, limit, view.used + n, nil)
  return token, value
end
