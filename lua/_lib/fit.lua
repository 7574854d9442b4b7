-- Provides cap_of(limit, own): how many permits there are now, by the operator's limit if there
-- is one, else by `own`, the limit in a name. A value that is no limit counts as none.
local function cap_of(limit, own)
  local override = tonumber(on_own('GET', limit) or '')
  return override and override >= 0 and override or own
end

-- Provides value_for(view, n, cap, slot): what the field of a new owner of n permits says: its
-- slot (for slot -1 the lowest free one), or -n for n > 1 permits. Nil if these do not fit.
local function value_for(view, n, cap, slot)
  if view.used + n > cap then
    return nil
  elseif n > 1 then
    return -n
  elseif slot < 0 then
    slot = 0
    while view.slots[slot] do
      slot = slot + 1
    end
  elseif view.slots[slot] or slot >= cap then
    return nil
  end
  return slot
end

-- Provides wait_ms(...): how long (ms) until so many leases have ended that n permits fit; 0 if
-- they fit now. Where an operator's limit is below n, until that ends; -1 without an end.
local function wait_ms(view, leases, limit, n, cap, now_us)
  local used = view.used
  if used + n <= cap then
    return 0
  end
  for i = 1, #view.names do
    used = used - math.max(1, -view.values[i])
    if used + n <= cap then
      return left_ms(leases, view.names[i], now_us)
    end
  end
  local until_ms = redis.call('PTTL', limit)
  return until_ms < 0 and -1 or math.max(1, until_ms)
end
