-- Provides no_vote_until(master, socket, guard_ms, now_us): the time on this
-- master's clock (us) until which it has no vote, or nil when it has one. `socket`
-- is the incarnation that the caller's socket was opened to.
--
-- A master that restarted, failed over or was flushed may have forgotten leases
-- that still run. What it can't have kept is a marker that names the incarnation
-- which the caller's socket talks to; so a marker that is missing or names
-- another incarnation starts the guard (the delayed restart of the Redlock
-- paper). Without a marker key there is no guard at all.
--
-- A socket may outlive its incarnation: where a master is made a replica and then
-- a master again, connections stay, and its data set, marker included, is the copy
-- that it got from elsewhere. A replication id never comes back. So `socket` is
-- <incarnation>?<16 digits>: the time on this master's clock (us) at which a vote
-- was written on that socket. Unless that was just now, too short a time ago for a
-- data set to be copied, the server is asked what it is. If that is something else,
-- the socket gets no vote any more.
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
    -- Somebody else wrote that. It may have said anything, so it says nothing: as if it were missing.
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
    -- Whoever has the larger guard has longer leases, and they may be among those that were forgotten.
    until_us = until_us + (largest_ms - known_ms) * 1000
    redis.call('HSET', master, 'no_vote_until_us', digits(until_us), 'guard_ms', digits(largest_ms))
  end
  local longest_us = now_us + largest_ms * 1000
  if until_us > longest_us then
    -- A clock that was set back must not lengthen the guard, however far.
    until_us = longest_us
    redis.call('HSET', master, 'no_vote_until_us', digits(until_us))
  end
  if now_us < until_us then
    return until_us
  end
  return has_moved and now_us or nil
end
