-- Provides hand_over(...): gives the free lock to the first waiter that listens,
-- and tells it so in one message. A waiter that takes no grants is woken instead.
--
-- The name of a waiter that takes grants ends with @<lease in ms>, the lease that a
-- releaser may give it. That lease is short, because a message may be lost. A name with
-- `&` is that of a reader, and one with `#` that of a waiter for permits: such a waiter is
-- only woken.
--
-- The name of the new hold has three parts: the waiter, the hold that was released, and
-- the waiter's ticket. So the name is the same on all masters, and was never used before.
-- `enqueue` needs the ticket: until it is known whether the waiter takes the lock, a later
-- waiter must get a larger ticket.
--
-- If PUBLISH does not count receivers, or is refused, this script cannot know whether the
-- first waiter lives. Then waiters are only woken.
local function hand_over(lock, queue, waiters, token_key, releaser, incarnation, now_us)
  local ended_part = string.sub(string.match(releaser, '^[^:]*:([^@~&#]*)'), -16) .. '.'
  local server = string.match(incarnation, '^[^?!=]+') or '-'
  local lease_ms, hold
  local token, kept_ms, told = nil, 0, 0
  local grantee = tell_first(lock, queue, waiters, nil, function(uuid, name, waiter, ticket)
    -- The longest lease has 12 digits.
    lease_ms = publish_counts and not string.find(uuid, '[&#]') and string.match(uuid, '@(%d+)$', -13)
    if not lease_ms then
      return wake(uuid, name)
    end
    -- Each waiter gets its own token: a replica may pass on a message even if no client receives it here.
    token = token and token + 1 or next_token(token_key, now_us, lease_ms)
    kept_ms, told = math.max(kept_ms, tonumber(lease_ms)), told + 1
    ticket = ticket or redis.call('ZSCORE', queue, waiter)
    hold = ended_part .. (string.find(ticket, '%D') and digits(ticket) or ticket)
    return 'grant ' .. uuid .. ' ' .. hold .. ' ' .. digits(token) .. ' ' .. digits(now_us) .. ' ' .. lease_ms .. ' '
      .. server .. ' ' .. name
  end)
  if told > 1 then
    remember(token_key, token, now_us, kept_ms) -- the last token, for longer than any of the leases
  end
  if grantee and lease_ms and publish_counts then -- its client has received the message
    redis.call('HSET', lock, grantee .. '~' .. hold, 1)
    redis.call('PEXPIRE', lock, lease_ms)
    redis.call('ZREM', queue, grantee)
    on_own('ZREM', waiters, grantee)
  end
end
