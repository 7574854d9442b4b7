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
