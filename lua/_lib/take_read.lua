-- Provides try_to_take(...): gives the lock to this reader if no writer has it, and no waiter
-- that listens comes first. Returns the fencing token. Else returns nil and a holder: '' for a
-- key of another type; nil if the lock is free, but other waiters come first, or may.
--
-- A grant wakes the next waiter if that is a reader as well. So all readers up to the next
-- writer get in, one after the other in their order, and no writer looks in vain.
local function try_to_take(lock, queue, waiters, token_key, leases, owner, waiter, count, lease_ms, fair, now_us)
  local writer = writer_of(lock, leases)
  if writer and not is_own(writer, owner) then
    return nil, writer
  end
  -- A repeated request needs no turn, nor does a reader whose owner has the lock as the writer.
  if not writer and redis.call('HEXISTS', lock, owner) == 0 and redis.call('EXISTS', queue) == 1 then
    local is_free = redis.call('EXISTS', lock) == 0
    drop_overdue(queue, waiters, now_us)
    if fair == '1' then
      local first, is_open = (is_free and wake_first or wake_reader)(lock, queue, waiters, waiter)
      if first or is_open then
        return nil, not is_free and redis.call('ZRANGE', leases, -1, -1)[1] or nil
      end
    end
  end
  if redis.call('HEXISTS', lock, owner) == 0 then
    redis.call('HSET', lock, owner, count)
  end
  keep_lease(lock, leases, owner, lease_ms, now_us)
  local token = next_token(token_key, now_us, latest_ms(lock, lease_ms))
  if on_own('ZREM', queue, waiter) == 1 then
    on_own('ZREM', waiters, waiter)
  end
  if not writer and redis.call('EXISTS', queue) == 1 then
    wake_reader(lock, queue, waiters, nil)
  end
  return token
end
