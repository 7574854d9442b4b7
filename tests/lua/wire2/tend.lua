-- The sign of life of one client for all its waiters on one lock: restores what
-- this master has lost, removes who is overdue, and makes good a lost wake-up.
--
-- KEYS
--   lock      hash    the hold: <client>:<uuid> -> hold count
--   queue     zset    waiters by ticket
--   waiters   zset    waiters by the time (ms) until which they count as alive
-- ARGV
--   client    text   the client whose waiters these are
--   alive_ms  ms     for how long they count as alive from now on
--   queue_ms  ms     for how long the queue outlives its last sign of life
--   void_us   us     time on this master's clock after which this call does nothing
--   ...       pairs  ticket and <client>:<uuid> of each waiter
-- RETURNS
--   tended    now_us pttl_ms turn head  the lease left; who of these is to look; who is first in the queue
--   void      now_us                    came too late, nothing was done
-- WRITES
--   queue     queue_ms
--   waiters   queue_ms
-- PUBLISHES
--   wake  to the first waiter that listens, when the lock is free
-- REPEATABLE
--   A second arrival finds all tickets in their places.

-- Provides now_us: this master's clock, in microseconds.
-- Read once: before Redis 7.2 two TIME calls of one script can differ.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
-- Provides digits(number): an integer as text. Lua's own tostring keeps 14
-- digits, too few for a time in microseconds.
local function digits(number)
  return string.format('%.0f', number)
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
-- Provides holder_of(lock): who has the lock, or nil when it is free. A key of
-- another type reads as held, by a holder without a name, and is never an error.
local function holder_of(lock)
  local owners = on_hash('HKEYS', lock)
  if not owners then
    return ''
  end
  return owners[1]
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

local lock = KEYS[1]
local queue = KEYS[2]
local waiters = KEYS[3]
local client = ARGV[1]
local alive_ms = ARGV[2]
local queue_ms = ARGV[3]
local void_us = ARGV[4]

if now_us > tonumber(void_us) then
  return { 'void', now_us }
end
local holder = holder_of(lock)
local alive_until_ms = digits(now_us / 1000 + alive_ms)
local heir = ''
for i = 5, #ARGV, 2 do
  if holder and ARGV[i + 1] == waiter_of(holder) then
    heir = ARGV[i + 1] -- It waits no more, though it may not have heard yet.
  else
    redis.call('ZADD', queue, 'NX', ARGV[i], ARGV[i + 1])
    redis.call('ZADD', waiters, alive_until_ms, ARGV[i + 1])
  end
end
redis.call('PEXPIRE', queue, queue_ms)
redis.call('PEXPIRE', waiters, queue_ms)
drop_overdue(queue, waiters, now_us)

local head = redis.call('ZRANGE', queue, 0, 0)[1] or ''
if holder then
  local left_ms = redis.call('PTTL', lock)
  -- In its last millisecond a lease has 0 ms left, and would read as none: nobody would look when it ends.
  return { 'tended', now_us, left_ms == 0 and 1 or left_ms, heir, head }
end
-- Its own waiters are told in the reply, which does not depend on Pub/Sub.
local turn = wake_first(lock, queue, nil) or head
local mine = string.sub(turn, 1, #client + 1) == client .. ':'
return { 'tended', now_us, 0, mine and turn or '', head }
