-- Provides place(...): writes the place of a waiter, with this ticket. The place is written
-- last: if another program has written to the key of the deadlines, this fails before the
-- queue has an entry without a deadline.
local function place(queue, waiters, waiter, ticket, alive_ms, queue_ms, now_us)
  redis.call('ZADD', waiters, digits(now_us / 1000 + alive_ms), waiter)
  redis.call('PEXPIRE', waiters, queue_ms)
  redis.call('ZADD', queue, digits(ticket), waiter) -- replaces a ticket from before the agreement
  redis.call('PEXPIRE', queue, queue_ms)
end

-- Provides ticket_above_holders(lock): a ticket above those of all holders; 1 if no name has one.
-- A holder may give the lock back and return to its place: its name ends with its ticket. See
-- hand_over.
local function ticket_above_holders(lock)
  local above = 1
  local fields = on_own('HLEN', lock)
  if fields and fields <= 2048 then
    for _, name in ipairs(redis.call('HKEYS', lock)) do
      local ticket = tonumber(string.match(name, '~%x+%.(%d+)') or 0)
      if ticket >= above and ticket < 2 ^ 53 - 1 then
        above = ticket + 1
      end
    end
  end
  return above
end

-- Provides find_place(...): gives a waiter its place, with the ticket that it has, that is agreed,
-- or that this master proposes; the place with a new agreed ticket is written before. Returns the
-- ticket, and true if it is only proposed and nothing was written.
local function find_place(lock, queue, waiters, waiter, ticket, alive_ms, queue_ms, now_us)
  local agreed = tonumber(redis.call('ZSCORE', queue, waiter) or ticket)
  if tonumber(ticket) > 0 then
    return agreed
  end
  local end_of_tickets = 2 ^ 53 -- from here on, Lua can't tell each number from the next
  if agreed <= 0 or agreed >= end_of_tickets then
    local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
    if tonumber(last[2] or 0) >= end_of_tickets then -- another program wrote it: no waiter could queue behind it
      local wrong = redis.call('ZRANGEBYSCORE', queue, digits(end_of_tickets), '+inf', 'LIMIT', 0, 1000)
      redis.call('ZREM', queue, unpack(wrong))
      last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
    end
    agreed = math.max(tonumber(last[2] or 0) + 1, ticket_above_holders(lock), now_us, -tonumber(ticket))
    if agreed >= end_of_tickets then
      agreed = now_us
    end
    if ticket == '-1' then
      return agreed, true
    end
  end
  place(queue, waiters, waiter, agreed, alive_ms, queue_ms, now_us)
  return agreed
end
