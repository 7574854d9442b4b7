-- Provides refusal(...): what a reply says to a caller that got no permit: how long (ms) until
-- its permits fit, the owner whose lease ends first ('' if they fit now), and the free slots for
-- a caller that wants a certain one. If the caller's waiter has a hold, `own`, it speaks of that
-- one alone. `foreign` is the key of another program, without a view.
local function refusal(view, foreign, own, leases, limit, n, cap, slot, now_us)
  if not view then
    return redis.call('PTTL', foreign), '', ''
  end
  if own then
    return left_ms(leases, own, now_us), own, ''
  end
  local pttl_ms = wait_ms(view, leases, limit, n, cap, now_us)
  local free, candidate = {}, 0
  while slot >= 0 and candidate < cap and #free < 64 do
    if not view.slots[candidate] then
      free[#free + 1] = candidate
    end
    candidate = candidate + 1
  end
  return pttl_ms, pttl_ms ~= 0 and view.names[1] or '', table.concat(free, ' ')
end
