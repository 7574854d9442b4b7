-- Provides remember(token_key, token, now_us, lease_ms): keeps the last fencing
-- token, and returns what was kept before. The key outlives the lease, and the
-- time by which the token is ahead of this master's clock: from then on the
-- clock alone keeps tokens rising.
local function remember(token_key, token, now_us, lease_ms)
  local ahead_ms = math.max(0, math.ceil((token - now_us) / 1000))
  return redis.call('SET', token_key, digits(token), 'PX', lease_ms + ahead_ms + 1000, 'GET')
end
