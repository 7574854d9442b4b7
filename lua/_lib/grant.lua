-- Provides grant(lock, token_key, owner, count, lease_ms, now_us): writes the hold
-- and its fencing token, and returns the reply.
local function grant(lock, token_key, owner, count, lease_ms, now_us)
  redis.call('HSET', lock, owner, count)
  redis.call('PEXPIRE', lock, lease_ms)
  return { 'granted', now_us, next_token(token_key, now_us, lease_ms) }
end
