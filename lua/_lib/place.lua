-- Provides place(...): writes the place of a waiter, with this ticket. The place is written
-- last: if another program has written to the key of the deadlines, this fails before the
-- queue has an entry without a deadline.
local function place(queue, waiters, waiter, ticket, alive_ms, queue_ms, now_us)
  redis.call('ZADD', waiters, digits(now_us / 1000 + alive_ms), waiter)
  redis.call('PEXPIRE', waiters, queue_ms)
  redis.call('ZADD', queue, digits(ticket), waiter) -- replaces a ticket from before the agreement
  redis.call('PEXPIRE', queue, queue_ms)
end
