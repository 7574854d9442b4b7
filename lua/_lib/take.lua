-- Provides try_to_take(...): gives the lock to this owner if the lock is free and it is the
-- owner's turn. Returns the fencing token. Else returns nil and the holder: '' for a key of
-- another type; nil if the lock is free, but other waiters come first, or may.
local function try_to_take(lock, queue, waiters, token_key, owner, waiter, count, lease_ms, fair, now_us)
  if redis.call('EXISTS', lock, queue) == 0 then
    return grant(lock, token_key, owner, count, lease_ms, now_us)
  end
  local holder = holder_of(lock)
  if holder == owner then
    -- A repeated request: the first one was granted, its reply was lost.
    lengthen(lock, lease_ms)
    lengthen(token_key, lease_ms + token_spare_ms)
    local token = tonumber(redis.call('GET', token_key) or 0)
    if not (token and token >= 1 and token <= token_max) then
      token = next_token(token_key, now_us, lease_ms) -- another program has overwritten the old token
    end
    return token
  end
  if holder then
    return nil, holder
  end
  drop_overdue(queue, waiters, now_us)
  if fair == '1' then
    local first, is_open = wake_first(lock, queue, waiters, waiter)
    if first or is_open then
      return nil, nil
    end
  end
  local token = grant(lock, token_key, owner, count, lease_ms, now_us)
  on_own('ZREM', queue, waiter)
  on_own('ZREM', waiters, waiter)
  return token
end
