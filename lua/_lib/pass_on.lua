-- Provides has_room(queue, limit, used): whether fewer permits are used than the first waiter in
-- the queue knows of. So a queue whose first waiter can't be served is left alone.
local function has_room(queue, limit, used)
  local head = (on_own('ZRANGE', queue, 0, 0) or {})[1]
  if not head then
    return false
  end
  local _, own = wanted_of(head)
  return used < cap_of(limit, own or math.huge)
end

-- Provides pass_on(...): wakes the first waiter that listens and comes before `me`, if there is
-- room. Returns the same as wake_first.
--
-- So one call wakes one waiter. A script that gives a permit calls this again, and so does each
-- waiter that takes one: that serves all that fit, in their order, and no others look in vain.
local function pass_on(permits, queue, waiters, limit, used, me)
  if has_room(queue, limit, used) then
    return wake_first(permits, queue, waiters, me)
  end
end
