-- Provides try_to_take(...): the one place where an acquire gets a hold.
-- Returns the reply of a grant, or nil and who holds the lock ('' for a key of
-- another type, nil when it is free but others come first).
local function try_to_take(lock, queue, waiters, token_key, owner, waiter, count, lease_ms, fair, now_us)
  local queued = false
  if redis.call('EXISTS', lock, queue) > 0 then
    local holder = holder_of(lock)
    if holder == owner then
      -- A repeated request: the first one was granted, its reply was lost.
      lengthen(lock, lease_ms)
      return { 'granted', now_us, tonumber(redis.call('GET', token_key) or 0) }
    end
    if holder then
      return nil, holder
    end
    drop_overdue(queue, waiters, now_us)
    if fair == '1' and wake_first(lock, queue, waiter) then
      return nil, nil
    end
    queued = true
  end

  redis.call('HSET', lock, owner, count)
  redis.call('PEXPIRE', lock, lease_ms)
  local token = now_us
  local last = remember(token_key, token, now_us, lease_ms)
  if last and tonumber(last) >= token then -- the clock was set back, or this is not its first grant in a microsecond
    token = tonumber(last) + 1
    remember(token_key, token, now_us, lease_ms)
  end
  if queued then
    redis.call('ZREM', queue, waiter)
    redis.call('ZREM', waiters, waiter)
  end
  return { 'granted', now_us, token }
end
