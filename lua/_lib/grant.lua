-- Provides grant(lock, token_key, owner, count, lease_ms, now_us): writes the hold
-- and its fencing token, which it returns.
local function grant(lock, token_key, owner, count, lease_ms, now_us)
  redis.call('HSET', lock, owner, count)
  redis.call('PEXPIRE', lock, lease_ms)
  return next_token(token_key, now_us, lease_ms)
end
