-- Provides grant(lock, token_key, owner, count, lease_ms, now_us): writes the hold
-- and its fencing token, and returns the reply.
local function grant(lock, token_key, owner, count, lease_ms, now_us)
  redis.call('HSET', lock, owner, count)
  redis.call('PEXPIRE', lock, lease_ms)
  local token = now_us
  local last = remember(token_key, token, now_us, lease_ms)
  if last and tonumber(last) >= token then -- the clock was set back, or this is not its first grant in a microsecond
    token = tonumber(last) + 1
    remember(token_key, token, now_us, lease_ms)
  end
  return { 'granted', now_us, token }
end
