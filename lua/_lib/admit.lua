-- Lets in a request that takes what is free: if this master has no vote, the script ends here.
-- Provides take_guard, a function to call with a grant if the caller's guard is larger than this
-- master's, and new_token, the token to give as text.
--
-- This fragment reads the script's own now, master, incarnation, guard_ms, owner and proposal. It
-- is not a function, because defining one would take a good part of the script's time.
--#include has_vote

local take_guard
if not has_vote then
  --#include clock
  --#include digits
  --#include vote

  local until_us
  until_us, take_guard = no_vote_until(master, incarnation, guard_ms, owner, now_us)
  if until_us then
    return { 'no_vote', now_us, until_us }
  end
end

-- If all masters give the same token, the release need not write it. The proposal lies above their clocks, but by no
-- more than half of the spare time for which the token's key outlives the lease.
local new_token = now
if #proposal == #now and proposal > now and proposal - now <= 500000 then
  new_token = proposal
end
