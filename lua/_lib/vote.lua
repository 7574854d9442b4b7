-- Provides no_vote_until(master, socket, guard_ms, now_us): the time on this
-- master's clock (us) until which it has no vote, or nil when it has one. `socket`
-- is the incarnation that the caller's socket was opened to.
--
-- A master that restarted, failed over or was flushed may have forgotten leases
-- that still run. Then its marker is missing, or names another incarnation than the
-- one behind the caller's socket. Either starts the guard (the delayed restart of
-- the Redlock algorithm). Without a marker key there is no guard at all.
--
-- A socket may outlive its incarnation. If a master becomes a replica and then a
-- master again, its connections stay open, but its data set, marker included, is a
-- copy from elsewhere. A replication id never comes back, so the script asks the
-- server for it, and a socket of another incarnation gets no vote any more. It asks
-- only if no vote was written on this socket just now: no data set can be copied so
-- fast. For that, `socket` is <incarnation>?<16 digits>, the time of that vote on
-- this master's clock (us).
local function present_incarnation(incarnation)
  local info = redis.call('INFO', 'replication')
  local id = string.find(info, 'role:master', 1, true) and string.match(info, 'master_replid:(%x+)') or ''
  return string.match(incarnation, '^[^:]*') .. ':' .. id
end

local function no_vote_until(master, socket, guard_ms, now_us)
  if not master then
    return nil
  end
  local incarnation, has_moved = string.sub(socket, 1, -18), false
  local quiet_us = now_us - tonumber(string.sub(socket, -16))
  if quiet_us < 0 or quiet_us > just_now_us then
    local present = present_incarnation(incarnation)
    incarnation, has_moved = present, present ~= incarnation
  end
  local marker = redis.call('HMGET', master, 'incarnation', 'no_vote_until_us', 'guard_ms')
  local known_ms, until_us = tonumber(marker[3] or 0), tonumber(marker[2] or 0)
  if not (known_ms and known_ms < 2 ^ 40 and until_us and until_us < 2 ^ 63) then
    -- Another program wrote that. The marker counts as missing.
    marker[1], known_ms = nil, 0
  end
  local largest_ms = math.max(known_ms, tonumber(guard_ms))
  if marker[1] == incarnation and largest_ms == known_ms and now_us >= until_us and not has_moved then
    return nil
  end
  if marker[1] ~= incarnation then
    until_us = now_us + largest_ms * 1000
    redis.call('HSET', master, 'incarnation', incarnation,
      'no_vote_until_us', digits(until_us), 'guard_ms', digits(largest_ms))
  elseif largest_ms > known_ms then
    -- A client with a larger guard has longer leases, and this master may have forgotten some of them.
    until_us = until_us + (largest_ms - known_ms) * 1000
    redis.call('HSET', master, 'no_vote_until_us', digits(until_us), 'guard_ms', digits(largest_ms))
  end
  local longest_us = now_us + largest_ms * 1000
  if until_us > longest_us then
    -- A clock that was set back must not make the guard longer than it is.
    until_us = longest_us
    redis.call('HSET', master, 'no_vote_until_us', digits(until_us))
  end
  if now_us < until_us then
    return until_us
  end
  return has_moved and now_us or nil
end
