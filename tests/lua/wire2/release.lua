-- Ends whatever this owner has here, a hold or a place in the queue, and gives the
-- lock to the first waiter, or tells it that it is its turn. Also the undo of an
-- attempt whose outcome is not known.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner        text   <client>:<uuid> of the hold, which is never used again
--   fence        int    its fencing token, written back where it is missing; 0 where no master can miss it
--   lease_ms     ms     for how long the token is remembered at least
--   hand         flag   1: a waiter that takes grants is given the lock; 0: it is told that it is its turn
--   void_us      us     time on this master's clock after which nobody is given anything
--   incarnation  text   what the caller's socket is connected to
--   guard_ms     ms     for how long a master that may have forgotten has no vote
-- RETURNS
--   released  now_us  the hold was here and has ended
--   absent    now_us  there was no such hold (any more)
-- WRITES
--   lock      what the waiter's name says: the lease that it may be given
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   grant  to the first waiter that listens, if it takes grants, when the lock is free
--   wake   to the same, if it does not
-- REPEATABLE
--   A second arrival finds nothing; it may wake the head once more, or give it the lock while that is free.

-- Provides now_us: this master's clock, in microseconds.
-- Read once: before Redis 7.2 two TIME calls of one script can differ.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
-- Provides digits(number): an integer as text. Lua's own tostring keeps 14
-- digits, too few for a time in microseconds.
local function digits(number)
  return string.format('%.0f', number)
end
-- Provides token_spare_ms: by how much the key of the last fencing token outlives a lease.
local token_spare_ms = 1000
-- Provides remember(token_key, token, now_us, lease_ms): keeps the last fencing
-- token, and returns what was kept before. The key outlives the lease, and the
-- time by which the token is ahead of this master's clock: from then on the
-- clock alone keeps tokens rising.
local function remember(token_key, token, now_us, lease_ms)
  local ahead_ms = math.max(0, math.ceil((token - now_us) / 1000))
  return redis.call('SET', token_key, digits(token), 'PX', lease_ms + ahead_ms + token_spare_ms, 'GET')
end

-- Provides next_token(token_key, now_us, lease_ms): a token above all that this
-- master remembers, which it now remembers instead.
local function next_token(token_key, now_us, lease_ms)
  local last = remember(token_key, now_us, now_us, lease_ms)
  if not last or tonumber(last) < now_us then
    return now_us
  end
  local token = tonumber(last) + 1 -- the clock was set back, or this is not its first grant in a microsecond
  remember(token_key, token, now_us, lease_ms)
  return token
end
-- Provides on_hash(command, key, ...): a command on a hash, or nil where the key
-- holds another type: that is some other library's lock. Any other error, such
-- as a right that is missing, is the caller's to hear.
local function on_hash(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
      return nil
    end
    return redis.call(command, key, ...)
  end
  return reply
end

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local master = KEYS[5]
local owner = ARGV[1]
local fence = ARGV[2]
local lease_ms = ARGV[3]
local hand = ARGV[4]
local void_us = ARGV[5]
local incarnation = ARGV[6]
local guard_ms = ARGV[7]

-- HDEL comes first: a master that is out of memory takes it, and then the rest.
local ended = on_hash('HDEL', lock, owner) == 1
-- Also where the hold is not, or no more: a master that has forgotten the token is to know it.
if fence ~= '0' and tonumber(fence) > tonumber(redis.call('GET', token) or 0) then
  remember(token, tonumber(fence), now_us, lease_ms)
end
if redis.call('EXISTS', queue) == 0 then
  return { ended and 'released' or 'absent', now_us }
end

-- Provides drop_overdue, tell_first and wake_first: who waits, and whose turn it is.
--
-- A waiter's name is <client>:<uuid>; its client listens on one channel. PUBLISH
-- returns how many received the message, so a waiter whose process has died is
-- seen here and passed over at once. It keeps its entry until its deadline in
-- `waiters`, because a live client whose subscription just broke looks the same.
-- On a cluster the number is that of one node's subscribers, so nobody is passed
-- over there: the next line is then sent with false.
local publish_counts = true

-- Removes the waiters that have given no sign of life for too long.
local function drop_overdue(queue, waiters, now_us)
  local overdue = redis.call('ZRANGEBYSCORE', waiters, '-inf', digits(now_us / 1000), 'LIMIT', 0, 1000)
  if #overdue > 0 then
    redis.call('ZREM', queue, unpack(overdue))
    redis.call('ZREM', waiters, unpack(overdue))
  end
end

-- Sends the first waiter whose client listens what `message(uuid, name, ticket)`
-- says, in the order of tickets and stopping before `me`. Returns that waiter, or
-- nil when nobody before `me` listens.
local function tell_first(lock, queue, me, message)
  local prefix, name = string.match(lock, '^([^{]*):{(.*)}$')
  local deaf = {}
  local first, page = 0, 0
  repeat
    local found = redis.call('ZRANGE', queue, first, first + page, 'WITHSCORES')
    for i = 1, #found, 2 do
      local waiter, ticket = found[i], found[i + 1]
      if waiter == me then
        return nil
      end
      local client, uuid = string.match(waiter, '^([^:]*):(.*)$')
      if not deaf[client] then
        local channel = prefix .. ':client:' .. client
        local heard = redis.call('PUBLISH', channel, message(uuid, name, ticket))
        if heard > 0 or not publish_counts then
          return waiter
        end
        deaf[client] = true
      end
    end
    first = first + page + 1
    page = 63 -- the head alone is the usual case; then whole pages
  until #found == 0
  return nil
end

local function wake(uuid, name)
  return 'wake ' .. uuid .. ' ' .. name
end

-- Tells the first waiter that listens, and comes before `me`, that it is its turn.
local function wake_first(lock, queue, me)
  return tell_first(lock, queue, me, wake)
end
-- Provides waiter_of(owner): the waiter behind an owner's name. Among several
-- masters the attempts of one wait have names of their own, <waiter>~<number>,
-- while its place in the queue keeps the waiter's.
local function waiter_of(owner)
  return string.match(owner, '^[^~]*')
end
-- Provides no_vote_until(master, incarnation, guard_ms, now_us): the time on
-- this master's clock (us) until which it has no vote, or nil when it has one.
--
-- A master that restarted, failed over or was flushed may have forgotten leases
-- that still run. What it can't have kept is a marker that names the incarnation
-- which the caller's socket talks to; so a marker that is missing or names
-- another incarnation starts the guard (the delayed restart of the Redlock
-- paper). Without a marker key there is no guard at all.
local function no_vote_until(master, incarnation, guard_ms, now_us)
  if not master then
    return nil
  end
  local marker = redis.call('HMGET', master, 'incarnation', 'no_vote_until_us', 'guard_ms')
  local known_ms = tonumber(marker[3] or 0)
  local largest_ms = math.max(known_ms, tonumber(guard_ms))
  local until_us = tonumber(marker[2] or 0)
  if marker[1] == incarnation and largest_ms == known_ms and now_us >= until_us then
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
  return nil
end
-- Provides hand_over(...): gives the free lock to the first waiter that listens,
-- and tells it so in one message; one that takes no grants is woken as ever.
--
-- Who takes grants says so at the end of its waiter's name: @<lease in ms>, the
-- lease that a releaser may give it. It is short, because a message may be lost.
-- The hold is named after the waiter, the hold that made room for it, and the
-- waiter's ticket: the name is the same on all masters, never one that was given
-- before, and as long as it is not known whether the waiter takes it, whoever comes
-- now still gets a larger ticket. Where PUBLISH does not count, nobody knows whether
-- the first waiter lives: nobody is given anything.
local function hand_over(lock, queue, waiters, token_key, releaser, incarnation, now_us)
  local room = string.sub(string.match(releaser, '^[^:]*:([^@~]*)'), -16)
  local lease_ms, hold
  local heir = tell_first(lock, queue, nil, function(uuid, name, ticket)
    lease_ms = publish_counts and string.match(uuid, '@(%d+)$')
    if not lease_ms then
      return wake(uuid, name)
    end
    hold = room .. '.' .. digits(ticket)
    -- A token for each that is tried, since each has its own lease, which the token is to outlive.
    local token = next_token(token_key, now_us, lease_ms)
    return table.concat({ 'grant', uuid, hold, digits(token), digits(now_us), lease_ms,
      incarnation == '' and '-' or incarnation, name }, ' ')
  end)
  if heir and lease_ms then
    redis.call('HSET', lock, heir .. '~' .. hold, 1)
    redis.call('PEXPIRE', lock, lease_ms)
    redis.call('ZREM', queue, heir)
    redis.call('ZREM', waiters, heir)
  end
end

local waiter = waiter_of(owner)
if redis.call('ZREM', queue, waiter) == 1 then
  redis.call('ZREM', waiters, waiter)
end
-- A hold is the only field of its hash: with it the lock is free.
if ended or redis.call('EXISTS', lock) == 0 then
  drop_overdue(queue, waiters, now_us)
  if hand == '1' and now_us <= tonumber(void_us) and not no_vote_until(master, incarnation, guard_ms, now_us) then
    hand_over(lock, queue, waiters, token, owner, incarnation, now_us)
  else
    wake_first(lock, queue, nil)
  end
end
return { ended and 'released' or 'absent', now_us }
