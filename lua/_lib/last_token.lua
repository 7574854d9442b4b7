-- Provides last_token(token_key): the last fencing token that this master knows, 0
-- where it knows none. What can be no token counts as none: somebody else wrote it.
local function last_token(token_key)
  local last = tonumber(redis.call('GET', token_key) or 0)
  return last and last >= 0 and last < token_max and last or 0
end
