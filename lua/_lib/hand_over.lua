-- Provides hand_over(...): gives the free lock to the first waiter that listens,
-- and tells it so in one message; one that takes no grants is woken as ever.
--
-- Who takes grants says so at the end of its waiter's name: @<lease in ms>, the
-- lease that a releaser may give it. It is short, because a message may be lost.
-- The hold is named after the waiter, the hold that made room for it, and the
-- waiter's ticket: the name is the same on all masters, never one that was given
-- before, and as long as it is not known whether the waiter takes it, whoever comes
-- now still gets a larger ticket. Where PUBLISH does not count, nobody knows whether
-- the first waiter lives: nobody is given anything.
local function hand_over(lock, queue, waiters, token_key, releaser, incarnation, now_us)
  local room = string.sub(string.match(releaser, '^[^:]*:([^@~]*)'), -16) .. '.'
  local server = string.match(incarnation, '^[^?]+') or '-'
  local lease_ms, hold
  local token, kept_ms, told = nil, 0, 0
  local grantee = tell_first(lock, queue, waiters, nil, function(uuid, name, waiter, ticket)
    lease_ms = publish_counts and string.match(uuid, '@(%d+)$', -13) -- the longest lease has 12 digits
    if not lease_ms then
      return wake(uuid, name)
    end
    -- Each has a token of its own: what nobody receives here may be heard of at a replica.
    token = token and token + 1 or next_token(token_key, now_us, lease_ms)
    kept_ms, told = math.max(kept_ms, tonumber(lease_ms)), told + 1
    ticket = ticket or redis.call('ZSCORE', queue, waiter)
    hold = room .. (string.find(ticket, '%D') and digits(ticket) or ticket)
    return 'grant ' .. uuid .. ' ' .. hold .. ' ' .. digits(token) .. ' ' .. digits(now_us) .. ' ' .. lease_ms .. ' '
      .. server .. ' ' .. name
  end)
  if told > 1 then
    remember(token_key, token, now_us, kept_ms) -- the last one, for longer than whichever lease was given
  end
  if grantee and lease_ms then
    redis.call('HSET', lock, grantee .. '~' .. hold, 1)
    redis.call('PEXPIRE', lock, lease_ms)
    redis.call('ZREM', queue, grantee)
    on_own('ZREM', waiters, grantee)
  end
end
