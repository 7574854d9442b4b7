-- Provides drop_overdue, tell_first and wake_first, which find the waiter whose turn it is.
--
-- A waiter's name is <client>:<uuid>. If no client receives a message on that client's
-- channel, the waiter's process has probably died, and the script skips the waiter at
-- once. The waiter keeps its entry until its deadline (its score in `waiters`), because a
-- live client whose subscription just broke looks the same. If PUBLISH does not count
-- receivers, or is refused, no waiter is skipped.

-- A longer name is not a waiter's: a client's name has at most 64 readable characters and
-- less than 64 others, and a uuid with its lease less than 64. To read a megabyte takes
-- milliseconds, so a script stops soon after it has met a longer name.
local name_max = 512

-- Removes the waiters that have sent no heartbeat for too long.
local function drop_overdue(queue, waiters, now_us)
  for _, most in ipairs({ 16, 984 }) do
    local overdue = on_own('ZRANGEBYSCORE', waiters, '-inf', digits(now_us / 1000), 'LIMIT', 0, most)
    if not overdue or #overdue == 0 then
      return
    end
    on_own('ZREM', queue, unpack(overdue))
    redis.call('ZREM', waiters, unpack(overdue))
    local has_long = false
    for i = 1, #overdue do
      has_long = has_long or #overdue[i] > name_max
    end
    if #overdue < most or has_long then
      return
    end
  end
end

-- Sends `message(uuid, name, waiter, ticket)` to the first waiter whose client listens, in
-- the order of tickets, and stops before `me`. `ticket` is nil if it was not read. Returns
-- that waiter, or nil if no waiter before `me` listens. If there are more waiters than one
-- call may look at, it returns nil and true: the turn is still open, and no caller may take
-- the lock.
local function tell_first(lock, queue, waiters, me, message)
  local has_long = false
  local function parts_of(waiter)
    if #waiter > name_max then
      has_long = true
      return nil
    end
    -- Printable, no blanks; a name with `~` is a hold's.
    local client, uuid = string.match(waiter, '^([!-9;-}]+):([!-9;-}]+)$')
    --#include channel of_waiter
    return client, uuid
  end
  local prefix, name = string.match(lock, '^([^{]*:){(.*)}') -- a semaphore's key goes on behind it
  local head = on_own('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if not head or not head[1] or head[1] == me then
    return nil
  end
  local client, uuid = parts_of(head[1])
  if client and publish_counts then
    if tell(prefix, name, client, message(uuid, name, head[1], head[2])) > 0 then
      return head[1] -- the usual case ends here, before it pays for the functions below
    end
  end

  -- Other programs may have written to these keys, and a script keeps a master busy for
  -- as long as it runs. So one call skips `passed_max` entries at most. It removes entries
  -- that are no waiters' names, and waiters that neither listen nor have a deadline. Every
  -- real waiter has a deadline: the script that writes its place also writes the deadline,
  -- and so does each heartbeat.
  local passed_max = 1000
  local long_max = 8 -- entries that are read at once, if the first name is too long
  local told_max = 32 -- waiters that get messages one by one; if there are more, the server is first asked which listen
  local sought_max = 100 -- if so many or fewer have deadlines, the waiters behind `passed_max` are found by these
  local not_listening, gone = { [publish_counts and client or ''] = true }, {}
  local all_have_deadlines

  local function drop(names)
    if #names > 0 then
      redis.call('ZREM', queue, unpack(names))
      on_own('ZREM', waiters, unpack(names))
    end
  end

  local function has_deadline(waiter)
    if all_have_deadlines == nil then
      all_have_deadlines = redis.call('ZCARD', queue) <= (on_own('ZCARD', waiters) or 0)
    end
    return all_have_deadlines or on_own('ZSCORE', waiters, waiter)
  end

  -- Returns those of these waiters whose clients do not listen; none, if the server refuses to say.
  local function find_not_listening(names)
    local asked, askers, found = {}, {}, {}
    for i = 1, #names do
      local client = parts_of(names[i])
      if client and publish_counts then
        asked[#asked + 1] = client
        askers[#asked] = names[i]
      end
    end
    local counts = count_listeners(prefix, name, asked)
    for i = 1, #asked do
      found[askers[i]] = counts[i] == 0
    end
    return found
  end

  -- Returns true and the waiter whose turn it is (nil: `me`), if it is among these names; else false.
  local function decide(names)
    local known_not_listening = publish_counts and #names > told_max and find_not_listening(names) or {}
    for i = 1, #names do
      local waiter = names[i]
      if waiter == me then
        return true, nil
      end
      local client, uuid = known_not_listening[waiter], nil
      if not client then
        client, uuid = parts_of(waiter)
        if client and not not_listening[client] and (publish_counts or has_deadline(waiter)) then
          local heard = tell(prefix, name, client, message(uuid, name, waiter))
          if heard > 0 or (not publish_counts and has_deadline(waiter)) then
            return true, waiter
          end
          not_listening[client] = true
        end
      end
      if not client or not (all_have_deadlines or has_deadline(waiter)) then
        gone[#gone + 1] = waiter
      end
    end
    return false, nil
  end

  -- Returns the waiters that have a deadline, in the order of the queue; nil if there are too many.
  local function seek_by_deadline()
    local names = on_own('ZRANGE', waiters, 0, sought_max)
    if not names or #names > sought_max then
      return nil
    end
    local placed, tickets = {}, {}
    for _, waiter in ipairs(names) do
      local ticket = redis.call('ZSCORE', queue, waiter)
      if ticket then
        tickets[waiter] = tonumber(ticket)
        table.insert(placed, waiter)
      end
    end
    table.sort(placed, function(one, other)
      return tickets[one] < tickets[other] or tickets[one] == tickets[other] and one < other
    end)
    return placed
  end

  local first, page = 0, has_long and long_max or told_max
  repeat
    local names = redis.call('ZRANGE', queue, first, first + page - 1)
    local is_decided, waiter = decide(names)
    if is_decided or #names < page then
      drop(gone)
      return waiter
    end
    if has_long then
      drop(gone) -- at least the long name, so that the next call goes on behind it
      return nil, true
    end
    first, page = first + page, passed_max + 1 - page
  until first > passed_max

  -- Drop them all, so that the next call goes on behind them. Heartbeats restore those that really wait.
  drop(redis.call('ZRANGE', queue, 0, passed_max))
  local names = redis.call('EXISTS', queue) == 0 and {} or seek_by_deadline()
  if not names then
    return nil, true
  end
  gone = {}
  local _, waiter = decide(names)
  drop(gone)
  return waiter
end

local function wake(uuid, name)
  return 'wake ' .. uuid .. ' ' .. name
end

-- Wakes the first waiter that listens and comes before `me`.
local function wake_first(lock, queue, waiters, me)
  return tell_first(lock, queue, waiters, me, wake)
end
