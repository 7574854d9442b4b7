-- Provides hand_permit(...): gives a slot that is free to the first waiter that listens, if that
-- wants one permit and takes grants, and tells it so in one message. Else wakes that waiter.
-- Returns how many permits are used then. Messages, names and tokens are those of hand_over.
--
-- The slot is that of the releaser, and ends the name of the new hold: so all masters give the
-- same slot under the same name.
local function hand_permit(permits, queue, waiters, token_key, leases, limit, used, slot, releaser, incarnation,
  now_us)
  local ended_part = string.sub(string.match(releaser, '^[^:]*:([^@~&#]*)'), -16) .. '.'
  local server = string.match(incarnation, '^[^?!=]+') or '-'
  local lease_ms, hold
  local token, kept_ms, told = nil, 0, 0
  local grantee = tell_first(permits, queue, waiters, nil, function(uuid, name, waiter, ticket)
    local n, own = wanted_of(waiter)
    local cap = n == 1 and cap_of(limit, own) or 0
    -- The longest lease has 12 digits.
    lease_ms = publish_counts and used < cap and slot < cap and string.match(uuid, '^[^@]*@(%d+)$')
    if not lease_ms or #lease_ms > 12 then
      lease_ms = nil
      return wake(uuid, name)
    end
    -- Each waiter gets its own token: a replica may pass on a message even if no client receives it here.
    token = token and token + 1 or next_token(token_key, now_us, latest_ms(permits, lease_ms))
    kept_ms, told = math.max(kept_ms, latest_ms(permits, lease_ms)), told + 1
    ticket = ticket or redis.call('ZSCORE', queue, waiter)
    hold = ended_part .. (string.find(ticket, '%D') and digits(ticket) or ticket) .. '.' .. slot
    return 'grant ' .. uuid .. ' ' .. hold .. ' ' .. digits(token) .. ' ' .. digits(now_us) .. ' ' .. lease_ms .. ' '
      .. server .. ' ' .. name
  end)
  if told > 1 then
    remember(token_key, token, now_us, kept_ms) -- the last token, for longer than any of the leases
  end
  if not (grantee and lease_ms and publish_counts) then
    return nil
  end
  -- Its client has received the message.
  redis.call('HSET', permits, grantee .. '~' .. hold, slot)
  keep_lease(permits, leases, grantee .. '~' .. hold, lease_ms, now_us)
  redis.call('ZREM', queue, grantee)
  on_own('ZREM', waiters, grantee)
  return used + 1
end
