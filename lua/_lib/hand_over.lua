-- Provides hand_over(...): gives the free lock to the first waiter that listens,
-- and tells it so in one message. A waiter that takes no grants is woken instead.
--
-- The name of a waiter that takes grants ends with @<lease in ms>, the lease that a
-- releaser may give it. That lease is short, because a message may be lost. A name with
-- `&` or `#` asks for what this version doesn't know: such a waiter is woken.
--
-- The hold is named after the waiter, the hold that made room for it, and the
-- waiter's ticket. So its name is the same on all masters, and new. The ticket is in
-- it for `enqueue`: a later waiter gets a larger ticket also while nobody knows
-- whether this one takes the lock.
--
-- Where PUBLISH does not count, or is refused, nobody knows whether the first waiter lives.
-- There, waiters are only woken.
local function hand_over(lock, queue, waiters, token_key, releaser, incarnation, now_us)
  local room = string.sub(string.match(releaser, '^[^:]*:([^@~&#]*)'), -16) .. '.'
  local server = string.match(incarnation, '^[^?]+') or '-'
  local lease_ms, hold
  local token, kept_ms, told = nil, 0, 0
  local grantee = tell_first(lock, queue, waiters, nil, function(uuid, name, waiter, ticket)
    -- The longest lease has 12 digits.
    lease_ms = publish_counts and not string.find(uuid, '[&#]') and string.match(uuid, '@(%d+)$', -13)
    if not lease_ms then
      return wake(uuid, name)
    end
    -- Each waiter that is told gets its own token: a replica may pass on a message that nobody receives here.
    token = token and token + 1 or next_token(token_key, now_us, lease_ms)
    kept_ms, told = math.max(kept_ms, tonumber(lease_ms)), told + 1
    ticket = ticket or redis.call('ZSCORE', queue, waiter)
    hold = room .. (string.find(ticket, '%D') and digits(ticket) or ticket)
    return 'grant ' .. uuid .. ' ' .. hold .. ' ' .. digits(token) .. ' ' .. digits(now_us) .. ' ' .. lease_ms .. ' '
      .. server .. ' ' .. name
  end)
  if told > 1 then
    remember(token_key, token, now_us, kept_ms) -- the last one, for longer than any of the leases
  end
  if grantee and lease_ms and publish_counts then -- it was counted, so it was told
    redis.call('HSET', lock, grantee .. '~' .. hold, 1)
    redis.call('PEXPIRE', lock, lease_ms)
    redis.call('ZREM', queue, grantee)
    on_own('ZREM', waiters, grantee)
  end
end
