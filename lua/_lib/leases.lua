-- Provides what scripts know of permits, or of a lock's readers, by their leases. A lease ends in `leases`, in whole ms
-- of this master's clock, one ms late rather than early. A lease that has ended is over,
-- whether or not a script has removed it.
local holders_max = 2048 -- a hash with more fields is another program's, and is not read

-- Removes the permits, or readers, whose leases have ended. If a key was deleted, this also
-- removes those without a lease, and the leases without a field. A writer has no lease here.
local function reap(permits, leases, now_us)
  local ended = on_own('ZRANGEBYSCORE', leases, '-inf', digits(math.floor(now_us / 1000)), 'LIMIT', 0, holders_max)
  if not ended then
    return
  end
  local fields = on_own('HLEN', permits)
  if #ended > 0 then
    if fields then
      fields = fields - redis.call('HDEL', permits, unpack(ended))
    end
    redis.call('ZREM', leases, unpack(ended))
  end
  if not fields or fields > holders_max or fields == redis.call('ZCARD', leases) then
    return
  end
  local names, has_lease, odd = redis.call('ZRANGE', leases, 0, holders_max - 1), {}, {}
  for i = 1, #names do
    has_lease[names[i]] = true
    if redis.call('HEXISTS', permits, names[i]) == 0 then
      odd[#odd + 1] = names[i]
    end
  end
  if #odd > 0 then
    redis.call('ZREM', leases, unpack(odd))
  end
  if #names == holders_max then
    return -- there may be more leases, which the next call reads
  end
  odd = {}
  for _, name in ipairs(redis.call('HKEYS', permits)) do
    if not has_lease[name] and string.find(name, '[#&]') then
      odd[#odd + 1] = name
    end
  end
  if #odd > 0 then
    redis.call('HDEL', permits, unpack(odd))
  end
end

-- Returns the permits whose leases run: `names` and `values` in the order in which the leases
-- end, `used` for how many permits these are, and `slots`, the owner of each slot that is
-- taken. Returns nil and the key, if that is another program's.
local function look(permits, leases, now_us)
  local fields = on_own('HLEN', permits)
  if not fields or fields > holders_max then
    return nil, permits
  end
  local after = digits(math.floor(now_us / 1000) + 1)
  local all = on_own('ZRANGEBYSCORE', leases, after, '+inf', 'LIMIT', 0, holders_max)
  if not all then
    return nil, leases
  end
  local view = { names = {}, values = {}, used = 0, slots = {} }
  local values = #all > 0 and redis.call('HMGET', permits, unpack(all)) or {}
  for i = 1, #all do
    if values[i] then
      local value = tonumber(values[i]) or 0
      local last = #view.names + 1
      view.names[last], view.values[last] = all[i], value
      view.used = view.used + math.max(1, -value)
      if value >= 0 then
        view.slots[value] = all[i]
      end
    end
  end
  return view
end

-- Makes the lease of a permit last for lease_ms at least. Never shortens it. PEXPIRE comes
-- first: a master that is out of memory allows it, and after it ZADD.
local function keep_lease(permits, leases, owner, lease_ms, now_us)
  lengthen(permits, lease_ms)
  local end_ms = math.floor(now_us / 1000) + 1 + lease_ms
  if end_ms > tonumber(redis.call('ZSCORE', leases, owner) or 0) then
    redis.call('ZADD', leases, digits(end_ms), owner)
  end
  lengthen(leases, lease_ms)
end

-- Returns how long (ms) the latest lease runs, lease_ms at least: the last token is remembered for longer than any.
local function latest_ms(permits, lease_ms)
  return math.max(redis.call('PTTL', permits), tonumber(lease_ms))
end

-- Returns how long (ms) the lease of an owner runs, 1 at least.
local function left_ms(leases, owner, now_us)
  local left = tonumber(redis.call('ZSCORE', leases, owner)) - math.floor(now_us / 1000) - 1
  return math.max(1, math.min(left, 1e14))
end
