-- Provides last_token(token_key): the last fencing token that this master knows, or 0. A
-- value that can't be a token counts as 0: another program wrote it.
local function last_token(token_key)
  local last = tonumber(redis.call('GET', token_key) or 0)
  return last and last >= 0 and last < token_max and last or 0
end
