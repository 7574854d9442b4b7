-- Provides wake_reader(lock, queue, waiters, me): finds the first waiter that listens and comes
-- before `me`, as wake_first does, and wakes it if it is a reader. For a lock that readers have:
-- another reader gets in, and a writer that is first must not be woken, and lets nobody pass.
local function wake_reader(lock, queue, waiters, me)
  return tell_first(lock, queue, waiters, me, function(uuid, name)
    return string.find(uuid, '&', 1, true) and wake(uuid, name) or nil
  end)
end
