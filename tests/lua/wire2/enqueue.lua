-- Takes the lock if it is free and the caller's turn; else waits in the queue.
-- A caller that is queued already keeps its place.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
--   token     string  the last fencing token
--   master    hash    incarnation and guard of this master; optional
-- ARGV
--   owner        text   <client>:<uuid> of the hold that this may become; its waiter has the place in the queue
--   count        int    hold count to begin with
--   lease_ms     ms     lease of the hold
--   fair         flag   1: whoever waits and listens comes first
--   ticket       int    the agreed ticket; 0: this master's proposal is agreed; -1: propose one, and write nothing
--   alive_ms     ms     for how long the waiter counts as alive without a sign
--   queue_ms     ms     for how long the queue outlives its last sign of life
--   void_us      us     time on this master's clock after which this call does nothing
--   incarnation  text   what the caller's socket is connected to
--   guard_ms     ms     for how long a master that may have forgotten has no vote
-- RETURNS
--   granted  now_us token                       the hold is the caller's
--   queued   now_us pttl_ms ahead holder ticket  the caller waits behind `ahead` others
--   proposed now_us pttl_ms ahead holder ticket  it would, with this ticket
--   void     now_us                             came too late, nothing was done
--   no_vote  now_us until_us                    this master may have forgotten leases until then
-- WRITES
--   lock      lease_ms
--   queue     queue_ms
--   waiters   queue_ms
--   token     the lease and what the token is ahead of the clock
--   master    none
-- PUBLISHES
--   wake  to the first that listens, when the lock is free and it is another's turn
-- REPEATABLE
--   A second arrival finds its ticket, or its hold.

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
-- Provides holder_of(lock): who has the lock, or nil when it is free. A key of
-- another type reads as held, by a holder without a name, and is never an error.
local function holder_of(lock)
  local owners = on_hash('HKEYS', lock)
  if not owners then
    return ''
  end
  return owners[1]
end
-- Provides lengthen(key, ttl_ms): the key lives for ttl_ms from now, or as long
-- as it would have lived anyway: no script shortens a lease. This always writes
-- (PEXPIRE, which a master that is out of memory still takes), so that a write
-- after it in the same script is not refused for lack of memory.
local function lengthen(key, ttl_ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ttl_ms), 1))
end
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
-- Provides grant(lock, token_key, owner, count, lease_ms, now_us): writes the hold
-- and its fencing token, and returns the reply.
local function grant(lock, token_key, owner, count, lease_ms, now_us)
  redis.call('HSET', lock, owner, count)
  redis.call('PEXPIRE', lock, lease_ms)
  return { 'granted', now_us, next_token(token_key, now_us, lease_ms) }
end
-- Provides try_to_take(...): the one place where an acquire gets a hold, if the
-- lock is free and it is its turn. Returns the reply of a grant, or nil and who
-- holds the lock ('' for a key of another type, nil when it is free but others
-- come first).
local function try_to_take(lock, queue, waiters, token_key, owner, waiter, count, lease_ms, fair, now_us)
  if redis.call('EXISTS', lock, queue) == 0 then
    return grant(lock, token_key, owner, count, lease_ms, now_us)
  end
  local holder = holder_of(lock)
  if holder == owner then
    -- A repeated request: the first one was granted, its reply was lost.
    lengthen(lock, lease_ms)
    lengthen(token_key, lease_ms + token_spare_ms)
    return { 'granted', now_us, tonumber(redis.call('GET', token_key) or 0) }
  end
  if holder then
    return nil, holder
  end
  drop_overdue(queue, waiters, now_us)
  if fair == '1' and wake_first(lock, queue, waiter) then
    return nil, nil
  end
  local granted = grant(lock, token_key, owner, count, lease_ms, now_us)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', waiters, waiter)
  return granted
end

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local token = KEYS[4]
local master = KEYS[5]
local owner = ARGV[1]
local count = ARGV[2]
local lease_ms = ARGV[3]
local fair = ARGV[4]
local ticket = ARGV[5]
local alive_ms = ARGV[6]
local queue_ms = ARGV[7]
local void_us = ARGV[8]
local incarnation = ARGV[9]
local guard_ms = ARGV[10]
local waiter = waiter_of(owner)

if now_us > tonumber(void_us) then
  return { 'void', now_us }
end

local function place(agreed)
  redis.call('ZADD', queue, 'NX', digits(agreed), waiter)
  redis.call('ZADD', waiters, digits(now_us / 1000 + alive_ms), waiter)
  redis.call('PEXPIRE', queue, queue_ms)
  redis.call('PEXPIRE', waiters, queue_ms)
end

local agreed = tonumber(ticket)
if agreed > 0 and holder_of(lock) ~= owner then
  -- Before the turn is looked for, which goes by tickets: a second arrival would find this one, and might be granted
  -- what the first was not. And it is no vote: whoever waits is to be in order when this master votes again.
  place(agreed)
end
local until_us = no_vote_until(master, incarnation, guard_ms, now_us)
if until_us then
  return { 'no_vote', now_us, until_us }
end
local granted, holder = try_to_take(lock, queue, waiters, token, owner, waiter, count, lease_ms, fair, now_us)
if granted then
  return granted
end
local pttl_ms = holder and redis.call('PTTL', lock) or 0

agreed = tonumber(redis.call('ZSCORE', queue, waiter) or ticket)
if agreed <= 0 then
  local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
  -- The ticket of who has got the lock here, and may give it back: its name ends with that. See hand_over.
  local heir = holder and string.match(holder, '~%x+%.(%d+)$')
  local proposal = math.max(tonumber(last[2] or 0) + 1, tonumber(heir or 0) + 1, now_us)
  if agreed < 0 then
    return { 'proposed', now_us, pttl_ms, redis.call('ZCARD', queue), holder or '', proposal }
  end
  agreed = proposal
end
if tonumber(ticket) <= 0 then
  place(agreed)
end
return { 'queued', now_us, pttl_ms, redis.call('ZRANK', queue, waiter), holder or '', agreed }
