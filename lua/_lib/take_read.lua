-- Provides try_to_take(...): gives the lock to this reader if no writer has it, and no writer
-- that listens comes first. Returns the fencing token. Else returns nil and a holder: '' for a
-- key of another type; nil if the lock is free, but other waiters come first, or may.
--
-- A grant wakes the next waiter if that is a reader as well. So all readers up to the next
-- writer get in, and no writer looks in vain.

-- Returns whether a writer waits before this waiter, or may: only so many are looked at. Readers
-- may pass each other: those that wait before this one get in as well. With several masters it
-- would take long if each had to wait until the one before has the lock on all of them.
local function has_writer_ahead(queue, waiter)
  local looked_at = 0
  for _, page in ipairs({ 16, 984 }) do
    local names = on_own('ZRANGE', queue, looked_at, looked_at + page - 1) or {}
    for i = 1, #names do
      if names[i] == waiter then
        return false
      elseif not string.find(names[i], '&', 1, true) then
        return true
      end
    end
    if #names < page then
      return false
    end
    looked_at = looked_at + page
  end
  return true
end

local function try_to_take(lock, queue, waiters, token_key, leases, owner, waiter, count, lease_ms, fair, now_us)
  local writer = writer_of(lock, leases)
  if writer and not is_own(writer, owner) then
    return nil, writer
  end
  local is_here = redis.call('HEXISTS', lock, owner) == 1 -- a repeated request, which needs no turn
  -- Nor does a reader whose owner has the lock as the writer.
  if fair == '1' and not writer and not is_here and redis.call('EXISTS', queue) == 1 then
    drop_overdue(queue, waiters, now_us)
    if has_writer_ahead(queue, waiter) then
      local is_free = redis.call('EXISTS', lock) == 0
      local first, is_open = (is_free and wake_first or wake_reader)(lock, queue, waiters, waiter)
      if first or is_open then
        return nil, not is_free and redis.call('ZRANGE', leases, -1, -1)[1] or nil
      end
    end
  end
  let_in(lock, leases, owner, count, writer)
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
