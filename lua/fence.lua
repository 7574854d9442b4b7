-- Makes this master remember a fencing token that other masters have granted.
--
-- KEYS
--   token     string  the last fencing token
-- ARGV
--   fence     int    the token to remember, unless this master knows a larger one
--   lease_ms  ms     for how long it is remembered at least
-- RETURNS
--   fenced    now_us  from now on, this master proposes only larger tokens
-- WRITES
--   token     the lease and what the token is ahead of the clock
-- PUBLISHES
--   none
-- REPEATABLE
--   A second arrival finds the token, or a larger one.

--#include time
--#include clock
--#include digits
--#include spare
--#include remember
--#include last_token

local token = KEYS[1]
local fence = ARGV[1]
local lease_ms = ARGV[2]

if tonumber(fence) > last_token(token) then
  remember(token, tonumber(fence), now_us, lease_ms)
end
return { 'fenced', now_us }
