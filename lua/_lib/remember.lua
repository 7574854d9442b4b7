-- Provides remember(token_key, token, now_us, lease_ms): writes the last fencing token,
-- and returns the one before. The key lives for the lease, plus the time by which the token
-- is ahead of this master's clock, plus a spare time. After that the clock alone keeps
-- tokens rising.
local function remember(token_key, token, now_us, lease_ms)
  local ahead_ms = math.max(0, math.ceil((token - now_us) / 1000))
  return redis.call('SET', token_key, digits(token), 'PX', lease_ms + ahead_ms + token_spare_ms, 'GET')
end

-- Provides token_above(last, token_key, now_us, lease_ms): the token of a grant, after
-- `remember` has written this master's clock over the last token.
local function token_above(last, token_key, now_us, lease_ms)
  last = tonumber(last or 0)
  if not (last and last >= now_us and last < token_max) then -- smaller than the clock, or written by another program
    return now_us
  end
  local token = last + 1 -- the clock was set back, or this is not its first grant in a microsecond
  remember(token_key, token, now_us, lease_ms)
  return token
end

-- Provides next_token(token_key, now_us, lease_ms): a token above the one that this master
-- remembers, which is replaced.
local function next_token(token_key, now_us, lease_ms)
  return token_above(remember(token_key, now_us, now_us, lease_ms), token_key, now_us, lease_ms)
end
