-- Provides remember(token_key, token, now_us, lease_ms): keeps the last fencing
-- token, and returns the one before. The key outlives the lease and the time by which
-- the token is ahead of this master's clock. After that the clock alone keeps tokens
-- rising.
local function remember(token_key, token, now_us, lease_ms)
  local ahead_ms = math.max(0, math.ceil((token - now_us) / 1000))
  return redis.call('SET', token_key, digits(token), 'PX', lease_ms + ahead_ms + token_spare_ms, 'GET')
end

-- Provides token_above(last, token_key, now_us, lease_ms): the token of a grant, after
-- `remember` has written this master's clock over the last token.
local function token_above(last, token_key, now_us, lease_ms)
  last = tonumber(last or 0)
  if not (last and last >= now_us and last < token_max) then -- a larger one, or no number: another program wrote it
    return now_us
  end
  local token = last + 1 -- the clock was set back, or this is not its first grant in a microsecond
  remember(token_key, token, now_us, lease_ms)
  return token
end

-- Provides next_token(token_key, now_us, lease_ms): a token above all that this
-- master remembers, which it now remembers instead.
local function next_token(token_key, now_us, lease_ms)
  return token_above(remember(token_key, now_us, now_us, lease_ms), token_key, now_us, lease_ms)
end
