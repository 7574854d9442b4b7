-- Provides know_token(...): makes this master remember a fencing token, unless it knows a larger
-- one, for kept_ms; and the last token for lease_ms at least.
local function know_token(token_key, fence, now_us, lease_ms, kept_ms)
  if tonumber(fence) > last_token(token_key) then
    remember(token_key, tonumber(fence), now_us, kept_ms)
  else
    lengthen(token_key, lease_ms + token_spare_ms)
  end
end
