-- Provides no_vote_until(master, socket, guard_ms, owner, now_us): the time on this
-- master's clock (us) until which the master has no vote, or nil if it has one. `socket` is
-- the incarnation that the caller's socket was opened to. The second result, if any, is a
-- function: a script that then gives a hold or a place must call it.
--
-- A master that restarted, failed over or was flushed may have forgotten leases
-- that still run. Then its marker is missing, or names another incarnation than the
-- one behind the caller's socket. Either starts the guard (the delayed restart of
-- the Redlock algorithm). Without a marker key there is no guard at all.
--
-- guard_ms is the client's guard, with a sign where it is not simply the client's own:
--
-- * With a minus, the client is at its first contact: it has seen no marker here, and has
--   not reached a quorum of its masters. Such a client may name masters that do not exist,
--   so it must not stop the clients that use this one. Where the marker is missing, this
--   writes nothing, and the client gets no vote.
-- * With a plus, the client has found the guard on a master and uses it as its own, though
--   its leases are shorter. If the marker is missing, such a guard begins. If this master has
--   a vote, the guard stops no client, not even this one.
--
-- A client whose guard is larger than the marker's has longer leases. If this master has no
-- vote, it may have forgotten such a lease, and takes the larger guard from any script. If
-- it has a vote, it goes on voting for the other clients. The client gets a vote at the
-- moment at which its own guard would be over. The first hold or place that it gets then
-- writes the larger guard.
--
-- A client whose guard is smaller has not read the marker since the larger guard came. On
-- a master that forgets the larger guard, such a client would begin the small one. So it
-- gets no vote (the time is now_us) before it has read the marker.
--
-- A socket may outlive its incarnation. If a master becomes a replica and then a
-- master again, its connections stay open, but its data set, marker included, is a
-- copy from elsewhere. A replication id never comes back, so the script asks the
-- server for it, and a socket of another incarnation gets no vote any more. The script
-- asks only if no vote was written on this socket just now: no data set can be copied so
-- fast. For that, `socket` is <incarnation>?<16 digits>, the time of that vote on
-- this master's clock (us). Where the service refuses INFO in scripts, a `!` stands in place
-- of the `?`, and the script does not ask: the marker must name the socket's incarnation.
-- For a client that relies on the marker alone, a `=` stands there: any marker is right, and
-- only a missing one begins the guard.
local function present_incarnation(incarnation)
  local info = redis.call('INFO', 'replication')
  local id = string.find(info, 'role:master', 1, true) and string.match(info, 'master_replid:(%x+)') or ''
  return string.match(incarnation, '^[^:]*') .. ':' .. id
end

local function set_guard(master, until_us, guard_ms, owner, now_us)
  redis.call('HSET', master, 'no_vote_until_us', digits(until_us), 'guard_ms', digits(guard_ms),
    'set_by', string.match(owner, '^[^:]*'), 'set_us', digits(now_us))
end

local function no_vote_until(master, socket, guard_ms, owner, now_us)
  if not master then
    return nil
  end
  local incarnation, has_moved = string.sub(socket, 1, -18), false
  local quiet_us = now_us - tonumber(string.sub(socket, -16))
  if (quiet_us < 0 or quiet_us > just_now_us) and string.byte(socket, -17) == 63 then -- a ?
    local present = present_incarnation(incarnation)
    incarnation, has_moved = present, present ~= incarnation
  end
  local marker = redis.call('HMGET', master, 'incarnation', 'no_vote_until_us', 'guard_ms')
  local known_ms, until_us = tonumber(marker[3] or 0), tonumber(marker[2] or 0)
  if not (known_ms and known_ms < 2 ^ 40 and until_us and until_us < 2 ^ 63) then
    -- Another program wrote the marker, so it counts as missing.
    marker[1], known_ms = nil, 0
  end
  if marker[1] and string.byte(socket, -17) == 61 then -- a =
    incarnation = marker[1]
  end
  local is_first, own_ms = tonumber(guard_ms) < 0, math.abs(tonumber(guard_ms))
  local largest_ms = math.max(known_ms, own_ms)
  if marker[1] == incarnation and largest_ms == known_ms and now_us >= until_us and not has_moved then
    return own_ms < known_ms and now_us or nil
  end
  if is_first and not marker[1] then
    return now_us
  end
  if marker[1] ~= incarnation then
    until_us = now_us + largest_ms * 1000
    redis.call('HSET', master, 'incarnation', incarnation,
      'no_vote_until_us', digits(until_us), 'guard_ms', digits(largest_ms))
    if own_ms > known_ms then
      set_guard(master, until_us, own_ms, owner, now_us)
    end
  elseif own_ms > known_ms then
    local later_us = until_us + (own_ms - known_ms) * 1000
    if now_us >= until_us then
      if string.byte(guard_ms) == 43 and not has_moved then -- a plus
        return nil
      end
      if is_first or has_moved or now_us < later_us then
        return math.max(later_us, now_us)
      end
      return nil, function()
        set_guard(master, later_us, own_ms, owner, now_us)
      end
    end
    until_us = later_us
    set_guard(master, until_us, own_ms, owner, now_us)
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
