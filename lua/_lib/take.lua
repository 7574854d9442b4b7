-- Provides try_to_take(...): the one place where an acquire gets a hold, if the
-- lock is free and it is its turn. Returns the reply of a grant, or nil and who
-- holds the lock ('' for a key of another type, nil when it is free but others
-- come first).
local function try_to_take(lock, queue, waiters, token_key, owner, waiter, count, lease_ms, fair, now_us)
  if redis.call('EXISTS', lock, queue) == 0 then
    return grant(lock, token_key, owner, count, lease_ms, now_us)
  end
  local holder = holder_of(lock)
  if holder == owner then
    -- A repeated request: the first one was granted, its reply was lost.
    lengthen(lock, lease_ms)
    lengthen(token_key, lease_ms + token_spare_ms)
    return { 'granted', now_us, tonumber(redis.call('GET', token_key) or 0) }
  end
  if holder then
    return nil, holder
  end
  drop_overdue(queue, waiters, now_us)
  if fair == '1' and wake_first(lock, queue, waiter) then
    return nil, nil
  end
  local granted = grant(lock, token_key, owner, count, lease_ms, now_us)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', waiters, waiter)
  return granted
end
