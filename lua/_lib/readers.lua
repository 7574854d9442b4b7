-- Provides writer_of(lock, leases): the holder that is no reader; nil if there is none. '' for
-- the key of another program: one of another type, or with many fields that are not readers'.
--
-- A reader's name has a mark, &, and an entry in `leases`. A writer's has neither, so a reader
-- that is the same owner may stand beside it.
local function writer_of(lock, leases)
  local fields, readers = on_own('HLEN', lock), on_own('ZCARD', leases)
  if not fields or not readers or (fields ~= readers and fields > holders_max) then
    return ''
  elseif fields > 1 and fields == readers then
    return nil
  end
  for _, name in ipairs(redis.call('HKEYS', lock)) do
    if not string.find(name, '&', 1, true) then
      return name
    end
  end
end

-- Provides is_own(writer, owner): whether this reader has the lock as that writer already. The
-- reader's name then ends with the part of the writer's that its client has made. The two may
-- have been taken in different event loops: each has a number of its own behind the client's name.
local function is_own(writer, owner)
  local client, stem = string.match(owner, '^([^:]*):[^&~]*&([^~]+)')
  if not stem then
    return false
  end
  local other, uuid = string.match(writer, '^([^:]*):([^@~&#]*)')
  return uuid == stem and string.gsub(other, '%.%d+$', '') == string.gsub(client, '%.%d+$', '')
end

-- Writes the hold of a reader, unless it is here. The first reader beside its own writer finds no
-- other's lease: what is in `leases` belongs to holds that were deleted with an earlier hash. It
-- must go, because writer_of takes as many fields as leases for readers only.
local function let_in(lock, leases, owner, count, writer)
  if redis.call('HEXISTS', lock, owner) == 0 then
    redis.call('HSET', lock, owner, count)
    if writer and redis.call('HLEN', lock) == 2 then
      redis.call('DEL', leases)
    end
  end
end

-- Makes the keys of a lock that only readers have end with the latest of their leases: the end
-- of a reader that had a longer one has ended that lease.
local function end_with_latest(lock, leases, now_us)
  local latest = redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2]
  if latest then
    local left_ms = math.max(1, tonumber(latest) - math.floor(now_us / 1000))
    if left_ms < 2 ^ 46 then
      redis.call('PEXPIRE', lock, digits(left_ms))
      redis.call('PEXPIRE', leases, digits(left_ms))
    end
  end
end
